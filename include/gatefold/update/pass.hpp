#pragma once

#include <tuple>

#include "gatefold/core/error.hpp"
#include "gatefold/policy/named.hpp"

namespace gatefold::update {

/// What a carry knows of the pass it is on, so that a second pass through the same layers without a begin() in between
/// does not go on with the momentum of the first.
///
/// A pass may come to the same parameters again, as layers that share them do: what it reads then is what the layer
/// before wrote, or it keeps something else for backward, or writes elsewhere where nothing is kept.
struct Pass {
  const void *params = nullptr,
             *kept = nullptr;  // of the first layer: its parameters; what it saves, or where it writes
  const void* last = nullptr;  // what was written last
  bool saves = false;          // whether the first layer keeps anything for backward

  /// A layer with these parameters reads x and writes y.
  /// @param saved  null where nothing is kept
  /// @throws ArgumentError where this is the first layer again
  template <class X, class Y>
  void enter(const char* where, const void* of_layer, const void* saved, const X& x, const Y& y) {
    if (x.size() == 0) return;
    const void* const keeps = saved ? saved : y.data();
    const bool again = params == of_layer && (kept == keeps || saves != (saved != nullptr));
    expect(!again || last == x.data(), where, "carry", "a begin() before each pass",
           "the state that the last pass left");
    if (!params) {
      params = of_layer;
      kept = keeps;
      saves = saved != nullptr;
    }
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
    static_assert(!named::pass<C>(),
                  "gatefold: pass of a Carry must be an update::Pass; see docs/extending.md#optional-members");
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
