#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

/// Selects what a training step does if the loss or a gradient is NaN or infinite: `throws` throws NotFiniteError,
/// `skips` skips the step and counts it. In both cases no parameter, moment or counter of the optimizer changes.
/// Trainer::not_finite is such an option, and Trainer::skipped is the number of skipped steps.
enum class NotFinite { throws, skips };

namespace functor {

/// Sets *verdict to 0 if *total is finite, otherwise to 1. `total` is a sum over all gradients, or over their squares.
/// It is not finite if a gradient is not finite, or if the sum overflows.
template <class T>
struct Verdict {
  const double* total;
  T* verdict;
  GATEFOLD_HD void operator()(Index) const { *verdict = is_finite(*total) ? T(0) : T(1); }
};

}  // namespace functor

/// Returns true if all values of the learned tensors of a pack are finite.
/// @cost  reads the pack once, and waits until the backend has finished
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
/// Returns the place of the first number in the rows of a batch that is NaN or infinite, for the message of an
/// exception, for example " (x has NaN in row 17, column 3)". Returns an empty text if there is none, or if `rows` is
/// not a matrix of floating-point numbers.
/// @cost  copies one row at a time to the host
template <class C, class V>
std::string place_not_finite([[maybe_unused]] C& ctx, [[maybe_unused]] const char* name,
                             [[maybe_unused]] const V& rows) {
  if constexpr (requires {
                  rows.extent(1);
                  typename V::Element;
                }) {
    using T = typename V::Element;
    if constexpr (std::is_floating_point_v<T> && V::rank == 2) {
      std::vector<T> row(static_cast<std::size_t>(rows.extent(1)));
      for (Index n = 0; n < rows.extent(0); ++n) {
        C::Backend::to_host(ctx, rows.extent(1), rows.data() + n * rows.extent(1), row.data());
        for (Index j = 0; j < rows.extent(1); ++j)
          if (const T v = row[static_cast<std::size_t>(j)]; !functor::is_finite(v)) {
            std::ostringstream text = message_stream();
            text << Joined{" (",        name, " has ", functor::is_nan(v) ? "NaN" : "infinity", " in row ", n,
                           ", column ", j,    ")"};
            return text.str();
          }
      }
    }
  }
  return {};
}
/// Throws NotFiniteError. The message names the loss if the loss is not finite, otherwise the first gradient that is
/// not finite. If loss and gradients are finite, the message reports that the sum of the squares overflows.
/// @param place  the result of place_not_finite for the batch
template <class C, class Pack>
[[noreturn]] void throw_not_finite(const char* where, C& ctx, double loss, const Pack& grads,
                                   const std::string& place = {}) {
  if (!functor::is_finite(loss)) throw_not_finite(where, Joined{"loss: expected a finite number, got ", loss, place});
  for_each_learned(
      [&](const Name& name, const auto& t) {
        if (!all_finite(ctx, t))
          throw_not_finite(where, Joined{"grads.", name, ": expected finite numbers, got NaN or infinity", place});
      },
      grads);
  throw_not_finite(where, Joined{"grads: expected a finite sum of squares, got an overflow", place});
}

}  // namespace gatefold
