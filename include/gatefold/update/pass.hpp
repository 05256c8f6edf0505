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

/// Adds the tensors of a pack to a hash.
struct HashTensors {
  SampledHash& of_pack;
  void operator()(const Name&, const auto& t) const { of_pack.add(t.view()); }
};
/// Returns the SampledHash of a carry, or 0 if all sampled values are 0. On a device, it always returns 0.
template <class C>
std::uint64_t hash_of(const C& carry) {
  SampledHash of_carry;
  for_each_tensor(HashTensors{of_carry}, carry);
  return of_carry.bits == 0 ? 0 : of_carry.hash;
}

/// Detects misuse of a carry:
///
/// - a second forward pass without begin(), which would continue the momentum of the first pass,
/// - the carry of a forward that is passed as the `dcarry` of a backward,
/// - a `dcarry` that is passed to a second backward, unchanged since the first backward.
///
/// A `dcarry` is refused only if its contents are not 0 and have not changed since the library wrote them. After you
/// write zeros or a gradient into it, you can use the same object again.
///
/// Layers can share parameters, so a pass can reach the parameters of its first layer again. This is not a second pass
/// if the layer reads the memory that the previous layer of the pass wrote. Code between the layers that moves items to
/// other memory and does not use the carry must call follow_pass.
struct Pass {
  const void* params = nullptr;  // parameters of the first layer
  const void* last = nullptr;    // the memory that was written last
  std::uint64_t left = 0;        // hash_of the carry after the last forward or backward
  // The arguments of the first backward after the caller wrote the carry, and the dx that the last backward wrote.
  const void *of_params = nullptr, *of_saved = nullptr, *dx = nullptr;

  /// Records that a layer with these parameters reads x and writes y.
  /// @throws ArgumentError if `of_layer` are the parameters of the first layer again, and x is not the memory that was
  ///         written last
  template <class X, class Y>
  void enter(const char* where, const void* of_layer, const X& x, const Y& y) {
    if (x.size() == 0) return;
    expect(params != of_layer || last == x.data(), where, "carry", "a call of begin() before each pass",
           "the state that the previous pass wrote");
    if (!params) params = of_layer;
    last = y.data();
  }
  /// Records that code that does not use the carry moved the items in `from` to `to`.
  void follow(const void* from, const void* to) {
    if (last == from) last = to;
  }
  /// Records a backward with these arguments. `now` is the hash of the carry.
  /// @throws ArgumentError in two cases. First: the carry is still as forward left it, and no backward was recorded.
  ///         Second: the carry is still as the last backward left it, the parameters and `saved` are those of
  ///         `of_params` and `of_saved`, and dy is not the dx that the last backward wrote
  void enter_backward(std::uint64_t now, const void* params_of_call, const void* saved, const void* dy) {
    const bool unchanged = left != 0 && now == left;
    expect(!unchanged || of_params, "backward", "dcarry", "zeros, or the adjoint of the carry",
           "the carry that forward wrote");
    expect(!unchanged || of_params != params_of_call || of_saved != saved || dx == dy, "backward", "dcarry",
           "zeros, or the adjoint of the carry", "the adjoint that the previous backward wrote");
    if (!unchanged) of_params = params_of_call, of_saved = saved;
    left = now;
  }
  void leave_backward(std::uint64_t now, const void* dx_of_call) {
    left = now == left ? 0 : now;  // a carry that a backward does not change may be used again
    dx = dx_of_call;
  }
};

namespace passes {

/// Calls f(pass, carry) for the pass of a carry, and for each carry inside it.
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

/// Calls Pass::enter for the pass of a carry. Does nothing if the carry has no pass.
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
/// Calls Pass::follow for the passes of a carry and of the carries inside it.
template <class C>
void follow_pass(C& carry, const void* from, const void* to) {
  passes::each(carry, [&](auto& pass, const auto&) { pass.follow(from, to); });
}
/// Records the contents of a carry. Must be called after a forward.
template <class C>
void leave_pass(C& carry) {
  passes::each(carry, [](auto& pass, const auto& of) {
    pass.left = hash_of(of);
    pass.of_params = nullptr;
  });
}
/// Calls Pass::enter_backward. It must be called before a backward, and leave_backward after the backward.
template <class C>
void enter_backward(C& dcarry, const void* params, const void* saved, const void* dy) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.enter_backward(hash_of(of), params, saved, dy); });
}
template <class C>
void leave_backward(C& dcarry, const void* dx) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.leave_backward(hash_of(of), dx); });
}

}  // namespace gatefold::update
