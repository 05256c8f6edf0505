#pragma once

#include <sstream>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/optim/optimizer.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

/// What a training step does if the loss or a gradient is NaN or infinite: it throws NotFiniteError, or it skips the
/// step and counts it. In both cases no parameter, moment or counter of the optimizer is written.
enum class NotFinite { throws, skips };

namespace functor {

/// Sets *verdict to 0 if *total is finite, otherwise to 1. `total` is a sum over all gradients; it is not finite if one
/// of them is not finite.
template <class T>
struct Verdict {
  const double* total;
  T* verdict;
  GATEFOLD_HD void operator()(Index) const { *verdict = is_finite(*total) ? T(0) : T(1); }
};

}  // namespace functor

/// Returns true if all values of the learned tensors of a pack are finite.
/// @cost  reads the pack once; waits for the backend
template <class C, class Pack>
bool all_finite(C& ctx, const Pack& pack) {
  auto mark = ctx.mark();
  double total = 0;
  C::Backend::to_host(ctx, 1, optim::measure_finite(ctx, pack).total, &total);
  return functor::is_finite(total);
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_not_finite(const char* where, Printed what) {
  std::ostringstream message = message_stream();
  message << where << ": " << what << "; no parameter was changed";
  throw NotFiniteError(message.str());
}
/// Throws NotFiniteError with the name of the loss or of the first gradient that is not finite.
template <class C, class Pack>
[[noreturn]] void throw_not_finite(const char* where, C& ctx, double loss, const Pack& grads) {
  if (!functor::is_finite(loss)) throw_not_finite(where, Joined{"loss: expected a finite number, got ", loss});
  for_each_learned(
      [&](const Name& name, const auto& t) {
        if (!all_finite(ctx, t))
          throw_not_finite(where, Joined{"grads.", name, ": expected finite numbers, got NaN or infinity"});
      },
      grads);
  throw_not_finite(where, "grads: expected a finite sum of squares, got an overflow");
}

}  // namespace gatefold
