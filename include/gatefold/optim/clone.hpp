#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/hooks.hpp"
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
/// The copy shares no memory with the pack. On a shard, the copy contains the same part of the model as the pack.
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

/// Calls f(name, number) for every number of an optimizer's state that is not in a tensor, for example its count of
/// steps. Includes the states inside this state. A state lists its numbers in a function `counters`:
///
///     static void counters(auto&& f, auto&... s) { f("step", s.step...); }
///
/// A state without `counters` has one number, `Index step`, or no number if it has no step.
template <class F, class P>
void for_each_counter(const F& f, const Name& at, P& pack) {
  using Pack = std::remove_const_t<P>;
  if constexpr (!detail_::pack::is_tensor<Pack> && !detail_::pack::is_vector<Pack> && !detail_::pack::is_tuple<Pack>) {
    const auto one = [&](std::string_view part, auto& number) { f(Name{&at, part}, number); };
    if constexpr (detail_::hook::optimizer::counters<Pack, decltype(one)>()) {
      Pack::counters(one, pack);
    } else if constexpr (requires { requires std::is_arithmetic_v<std::remove_cvref_t<decltype(pack.step)>>; }) {
      constexpr bool is_index = std::is_same_v<std::remove_cvref_t<decltype(pack.step)>, Index>;
      GATEFOLD_REQUIRE(is_index,
                       "gatefold: step of a State must be an Index, which checkpoints save; list numbers of other "
                       "types in static counters(f, state); see docs/reference/optional_members.md");
      if constexpr (is_index) one("step", pack.step);
    }
  }
  if constexpr (!detail_::pack::is_tensor<Pack>)
    detail_::pack::each_part([&](auto part, auto& of) { for_each_counter(f, Name{&at, part}, of); }, pack);
}

/// Converts a number to the form in which checkpoints store it. An integer is unchanged. A double or float becomes an
/// integer with the same bits.
template <class N>
auto kept(N number) {
  constexpr bool is_real = std::is_same_v<N, double> || std::is_same_v<N, float>;
  constexpr bool is_integer = std::is_integral_v<N> && !std::is_same_v<N, bool>;
  GATEFOLD_REQUIRE(is_real || is_integer,
                   "gatefold: a number that counters(f, state) lists must be an integer, a double or a float, which "
                   "checkpoints save; see docs/reference/optional_members.md");
  if constexpr (is_real) {
    return std::bit_cast<std::conditional_t<std::is_same_v<N, double>, std::uint64_t, std::uint32_t>>(number);
  } else if constexpr (is_integer) {
    return number;
  } else {
    return Index(0);
  }
}
template <class N>
N restored(decltype(kept(N())) number) {
  if constexpr (sizeof(N) == sizeof(number)) {
    return std::bit_cast<N>(number);
  } else {
    return {};
  }
}

/// Copies the counters of an optimizer state (the numbers that are not in tensors, for example the count of steps) to
/// another state. The other state must have as many counters, but can have a different type.
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
