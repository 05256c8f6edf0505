#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/optim/counters.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

namespace optim {

template <class P, class Q>
void copy_counters(const P& from, Q& to);

}  // namespace optim

/// Returns a copy of a pack (a struct of tensors), for example of parameters, gradients, or an optimizer's state with
/// its count of steps. Also copies single tensors.
///
///     auto best = clone(ctx, trainer.params);        // keep the best parameters …
///     copy_pack(ctx, best, trainer.params);          // … and return to them
///
/// The copy shares no memory with the pack. On shards, the copy has the same part of the tensors as the pack of this
/// process.
/// @throws std::bad_alloc or DeviceError if memory is short
/// @cost   memory of the pack's size and one copy of its values; allocates
template <class C, class P>
P clone(C& ctx, const P& of) {
  const auto here = ctx.here();
  P copy{};
  shape_like(copy, of);
  for_each_tensor(detail_::pack::Copy<C>{ctx}, of, copy);
  if constexpr (!detail_::pack::is_tensor<P>) optim::copy_counters(of, copy);
  return copy;
}

namespace optim {

/// Copies the numbers of an optimizer's state that are not in tensors to another state of the same type. An example is
/// the count of steps.
template <class P, class Q>
void copy_counters(const P& from, Q& to) {
  std::vector<std::uint64_t> bits;
  const auto take = [&](const Name&, const auto& number) { bits.push_back(static_cast<std::uint64_t>(kept(number))); };
  for_each_counter(take, Name{}, from);
  std::size_t count = 0;
  for_each_counter([&](const Name&, const auto&) { ++count; }, Name{}, to);
  expect(count == bits.size(), "copy_counters", "state", Joined{bits.size(), " counters, as in the other state"},
         count);
  auto next = bits.begin();
  const auto give = [&](const Name&, auto& number) {
    using N = std::remove_cvref_t<decltype(number)>;
    number = restored<N>(static_cast<decltype(kept(N()))>(*next++));
  };
  for_each_counter(give, Name{}, to);
}

/// Stops compilation with a message if a run, for example a Trainer, is copied. The copy constructor of a run calls
/// this function, because a deleted copy constructor could not give the message.
template <class R>
R&& refuse_copy(const R& run) {
  GATEFOLD_REQUIRE(std::is_void_v<R>,
                   "gatefold: a run (Trainer) is not copied: construct a second one from the same parts, then "
                   "second.params = clone(ctx, first.params) and second.state = clone(ctx, first.state)");
  return const_cast<R&&>(run);
}

}  // namespace optim

}  // namespace gatefold
