#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

/// Visits the members of an aggregate in order, without their names. Tests use this for the Saved of any policy.
namespace gatefold::test {

namespace members {

/// Converts to any type, so that it can stand for any member in an initializer list.
struct Any {
  template <class M>
  operator M() const;
};

template <class S, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), Any{})...}; };
}
template <class S, std::size_t N = 11>
constexpr std::size_t count() {
  if constexpr (N == 0 || takes<S>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return count<S, N - 1>();
  }
}

/// Calls f(member...) with all N members of s.
template <std::size_t N, class S, class F>
void apply(S& s, const F& f) {
  if constexpr (N == 0) {
    f();
  } else if constexpr (N == 1) {
    auto& [a] = s;
    f(a);
  } else if constexpr (N == 2) {
    auto& [a, b] = s;
    f(a, b);
  } else if constexpr (N == 3) {
    auto& [a, b, c] = s;
    f(a, b, c);
  } else if constexpr (N == 4) {
    auto& [a, b, c, d] = s;
    f(a, b, c, d);
  } else if constexpr (N == 5) {
    auto& [a, b, c, d, e] = s;
    f(a, b, c, d, e);
  } else if constexpr (N == 6) {
    auto& [a, b, c, d, e, g] = s;
    f(a, b, c, d, e, g);
  } else if constexpr (N == 7) {
    auto& [a, b, c, d, e, g, h] = s;
    f(a, b, c, d, e, g, h);
  } else if constexpr (N == 8) {
    auto& [a, b, c, d, e, g, h, i] = s;
    f(a, b, c, d, e, g, h, i);
  } else if constexpr (N == 9) {
    auto& [a, b, c, d, e, g, h, i, j] = s;
    f(a, b, c, d, e, g, h, i, j);
  } else if constexpr (N == 10) {
    auto& [a, b, c, d, e, g, h, i, j, k] = s;
    f(a, b, c, d, e, g, h, i, j, k);
  } else {
    auto& [a, b, c, d, e, g, h, i, j, k, l] = s;
    f(a, b, c, d, e, g, h, i, j, k, l);
  }
}

}  // namespace members

/// Calls f(i, member i of p, member i of q) for all members of two aggregates with at most 11 members.
template <class F, class P, class Q>
void for_each_member(F&& f, P& p, Q& q) {
  constexpr std::size_t count = members::count<std::remove_const_t<P>>();
  members::apply<count>(p, [&](auto&... left) {
    members::apply<count>(q, [&](auto&... right) {
      int i = 0;
      (f(i++, left, right), ...);
    });
  });
}

}  // namespace gatefold::test
