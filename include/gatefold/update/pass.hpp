#pragma once

#include <tuple>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/policy/named.hpp"

namespace gatefold::update {

/// What a carry knows of the pass it is on, so that a second pass through the same layers without a begin() in between
/// does not go on with the momentum of the first.
///
/// A pass may come to the parameters of its first layer again, where layers share them. What it reads then is what the
/// layer before wrote, or what stands between the two says so with follow_pass: of anything else nobody could tell that
/// it is no second pass.
struct Pass {
  const void* params = nullptr;  // of the first layer
  const void* last = nullptr;    // what was written last

  /// A layer with these parameters reads x and writes y.
  /// @throws ArgumentError where this is the first layer again
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
};

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
    GATEFOLD_REQUIRE(!named::pass<C>(),
                     "gatefold: pass of a Carry must be an update::Pass; see docs/reference/optional_members.md");
  }
}
/// Also of the carries within.
template <class C>
void follow_pass(C& carry, const void* from, const void* to) {
  if constexpr (requires { carry.pass.follow(from, to); }) {
    carry.pass.follow(from, to);
  } else if constexpr (requires { carry.states; }) {
    std::apply([&](auto&... state) { (follow_pass(state, from, to), ...); }, carry.states);
  } else if constexpr (requires { carry.tokens; }) {
    follow_pass(carry.tokens, from, to);
  }
}

}  // namespace gatefold::update
