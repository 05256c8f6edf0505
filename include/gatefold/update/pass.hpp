#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "gatefold/policy/named.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold::update {

/// A visitor that adds each tensor of a pack (a struct of tensors) to a hash.
struct HashTensors {
  SampledHash& of_pack;
  void operator()(const Name&, const auto& t) const { of_pack.add(t.view()); }
};
/// Returns a hash of sampled values of a carry (the state that an update rule passes from layer to layer). Returns 0 if
/// all sampled values are 0, or if the carry is in the memory of a device.
std::uint64_t hash_of(const auto& carry) {
  SampledHash of_carry;
  for_each_tensor(HashTensors{of_carry}, carry);
  return of_carry.bits == 0 ? 0 : of_carry.hash;
}

/// Detects misuse of a carry, the state that an update rule passes from layer to layer. `dcarry` is its gradient in
/// backward. Detected are:
///
/// - a second forward pass through the layers without begin(), which would continue with the state of the first pass,
/// - the carry of a forward pass as the `dcarry` argument of backward,
/// - a `dcarry` that is used in a second backward pass without being reset after the first.
///
/// A `dcarry` is refused only if its contents are not 0 and have not changed since the library wrote them. After you
/// write zeros or a gradient into it, you can use the same object again.
///
/// Layers can share parameters, so a pass can reach the parameters of its first layer again. This is not a second pass
/// if the layer reads the memory that the previous layer of the pass wrote. Code between the layers that moves items to
/// other memory and does not use the carry must call follow_pass.
struct Pass {
  const void* params = nullptr;  // parameters of the first layer of the forward pass; null: no pass has begun
  const void* last = nullptr;    // output of the last layer that has run
  std::uint64_t left = 0;        // hash of the carry after the last forward or backward of a layer; 0: not checked
  // `of_params` and `of_saved` are the arguments `params` and `saved` of the first backward call after the caller wrote
  // `dcarry`. `of_params` is null if forward wrote the carry. `dx` is the address of the gradient that the last
  // backward call wrote.
  const void *of_params = nullptr, *of_saved = nullptr, *dx = nullptr;

  /// Records that forward of one layer was called: the address of its parameters, its input x and its output y.
  /// @throws ArgumentError if a second pass begins without begin(). This is the case if `of_layer` are the parameters
  ///         of the first layer again, and x is not the output of the last layer
  template <class X, class Y>
  void enter(const char* where, const void* of_layer, const X& x, const Y& y) {
    if (x.size() == 0) return;
    expect(params != of_layer || last == x.data(), where, "carry", "a carry that begin() has reset for this pass",
           "the carry that the previous pass wrote");
    if (!params) params = of_layer;
    last = y.data();
  }
  /// Records that code between two layers copied the items from the memory `from` to the memory `to`, so that the next
  /// layer reads `to`.
  void follow(const void* from, const void* to) {
    if (last == from) last = to;
  }
  /// Records that backward of one layer was called, with the addresses of its arguments. `now` is the hash of the carry
  /// argument.
  /// @throws ArgumentError if the carry is the one that forward wrote. Also throws it if the carry is unchanged since
  ///         the last backward and this call begins a new backward pass. A new pass begins if the parameters and
  ///         `saved` are those of the first call of the last pass, and dy is not the dx that the last call wrote
  void enter_backward(std::uint64_t now, const void* params_of_call, const void* saved, const void* dy) {
    const bool unchanged = left != 0 && now == left;
    expect(!unchanged || of_params, "backward", "dcarry", "zeros, or the adjoint of the carry",
           "the carry that forward wrote");
    expect(!unchanged || of_params != params_of_call || of_saved != saved || dx == dy, "backward", "dcarry",
           "zeros at the start of a backward pass, or the adjoint of the carry",
           "the adjoint that the last backward pass wrote");
    if (!unchanged) of_params = params_of_call, of_saved = saved;
    left = now;
  }
  void leave_backward(std::uint64_t now, const void* dx_of_call) {
    // If backward left the carry unchanged (the hashes are equal), the caller may pass it to backward again.
    left = now == left ? 0 : now;
    dx = dx_of_call;
  }
};

namespace passes {

/// Calls f(carry.pass, carry) for a carry that has a Pass (the check for misuse). For the carry of a Chain or another
/// composition, calls f for the carries inside it.
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

/// Records in the Pass of a carry (the check for misuse) that forward of one layer was called, with Pass::enter. Does
/// nothing if the carry has no Pass.
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
                     "gatefold: the member `pass` of a Carry must have the type update::Pass; see "
                     "docs/reference/optional_members.md");
  }
}
/// Records that items were copied between two layers, from the memory `from` to `to`. Calls Pass::follow for the carry
/// and the carries inside it.
void follow_pass(auto& carry, const void* from, const void* to) {
  passes::each(carry, [&](auto& pass, const auto&) { pass.follow(from, to); });
}
/// Stores a hash of a carry in its Pass, to detect later whether the carry has changed. Call it after forward of a
/// layer.
void leave_pass(auto& carry) {
  passes::each(carry, [](auto& pass, const auto& of) {
    pass.left = hash_of(of);
    pass.of_params = nullptr;
  });
}
/// Checks the carry argument of backward of a layer, with Pass::enter_backward. Call it before the computation, and
/// leave_backward after it.
void enter_backward(auto& dcarry, const void* params, const void* saved, const void* dy) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.enter_backward(hash_of(of), params, saved, dy); });
}
void leave_backward(auto& dcarry, const void* dx) {
  passes::each(dcarry, [&](auto& pass, const auto& of) { pass.leave_backward(hash_of(of), dx); });
}

}  // namespace gatefold::update
