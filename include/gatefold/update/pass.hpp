#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold::update {

/// Adds the tensors of a pack.
struct HashTensors {
  SampledHash& of_pack;
  void operator()(const Name&, const auto& t) const { of_pack.add(t.view()); }
};
/// A hash of a carry (SampledHash), 0 if its values are 0 and on a device.
template <class C>
std::uint64_t hash_of(const C& carry) {
  SampledHash of_carry;
  for_each_tensor(HashTensors{of_carry}, carry);
  return of_carry.bits == 0 ? 0 : of_carry.hash;
}

/// Finds misuse of a carry: a second forward pass without begin(), which would continue the momentum of the first; the
/// carry of a forward as the `dcarry` of a backward; and a `dcarry` that a second backward gets as the first one left
/// it. A `dcarry` is refused only if its contents are those that the library left, and are not 0: whoever writes zeros
/// or an adjoint into it, by whatever means, may use the same object again.
///
/// A pass may come to the parameters of its first layer again, if layers share them. It is no second pass if it reads
/// the memory that was written last. Where something else reads and writes between these layers, it calls follow_pass.
struct Pass {
  const void* params = nullptr;  // of the first layer
  const void* last = nullptr;    // the memory that was written last
  std::uint64_t left = 0;        // hash_of the carry after the last forward or backward
  // Of the first backward with this object: what it was called with, and the dx that was written last.
  const void *of_params = nullptr, *of_saved = nullptr, *dx = nullptr;

  /// A layer with these parameters reads x and writes y.
  /// @throws ArgumentError if this is the first layer again
  template <class X, class Y>
  void enter(const char* where, const void* of_layer, const X& x, const Y& y) {
    if (x.size() == 0) return;
    expect(params != of_layer || last == x.data(), where, "carry", "a begin() before each pass",
           "the state that the last pass left");
    if (!params) params = of_layer;
    last = y.data();
  }
  /// What stood in `from` went on to `to`, through something that has no part in the carry.
  void follow(const void* from, const void* to) {
    if (last == from) last = to;
  }
  /// A backward with these arguments reads the carry, whose hash is `now`.
  /// @throws ArgumentError if forward left it so, or an earlier backward with the same arguments
  void enter_backward(std::uint64_t now, const void* params_of_call, const void* saved, const void* dy) {
    const bool unchanged = left != 0 && now == left;
    expect(!unchanged || of_params, "backward", "dcarry", "zeros, or the adjoint of the carry",
           "the carry that forward left");
    expect(!unchanged || of_params != params_of_call || of_saved != saved || dx == dy, "backward", "dcarry",
           "zeros, or the adjoint of the carry", "the one that the last backward left");
    if (!unchanged) of_params = params_of_call, of_saved = saved;
    left = now;
  }
  void leave_backward(std::uint64_t now, const void* dx_of_call) {
    left = now == left ? 0 : now;  // one that a backward does not change may be used again
    dx = dx_of_call;
  }
};

namespace passes {

/// f(pass, carry) for the pass of a carry, and those of the carries within.
template <class C, class F>
void each(C& carry, const F& f) {
  if constexpr (requires { carry.pass.follow(nullptr, nullptr); }) {
    f(carry.pass, std::as_const(carry));
  } else if constexpr (requires { carry.states; }) {
    std::apply([&](auto&... state) { (each(state, f), ...); }, carry.states);
  } else if constexpr (requires { carry.tokens; }) {
    each(carry.tokens, f);
  }
}

}  // namespace passes

/// The passes of a carry; of a carry without any, nothing.
template <class C, class... A>
void enter_pass(C& carry, const A&... arguments) {
  if constexpr (requires { carry.pass.enter(arguments...); }) carry.pass.enter(arguments...);
}
template <class C>
void begin_pass(C& carry) {
  if constexpr (requires { carry.pass = Pass{}; }) {
    carry.pass = {};
  } else {
    GATEFOLD_REQUIRE(!detail_::named::pass<C>(),
                     "gatefold: pass of a Carry must be an update::Pass; see docs/reference/optional_members.md");
  }
}
/// Also of the carries within.
template <class C>
void follow_pass(C& carry, const void* from, const void* to) {
  passes::each(carry, [&](auto& pass, const auto&) { pass.follow(from, to); });
}
/// After a forward.
template <class C>
void leave_pass(C& carry) {
  passes::each(carry, [](auto& pass, const auto& of) {
    pass.left = hash_of(of);
    pass.of_params = nullptr;
  });
}
/// Before and after a backward.
template <class C>
void enter_backward(C& dcarry, const void* params, const void* saved, const void* dy) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.enter_backward(hash_of(of), params, saved, dy); });
}
template <class C>
void leave_backward(C& dcarry, const void* dx) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.leave_backward(hash_of(of), dx); });
}

}  // namespace gatefold::update
