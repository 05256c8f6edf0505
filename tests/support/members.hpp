#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

/// The members of an aggregate, in order, without their names: what a test needs to look into the Saved of any policy.
namespace gatefold::test {

namespace members {

/// Stands for any member in a list of initial values.
struct Any {
  template <class M>
  operator M() const;
};

template <class S, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), Any{})...}; };
}
template <class S, std::size_t N = 8>
constexpr std::size_t count() {
  if constexpr (N == 0 || takes<S>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return count<S, N - 1>();
  }
}

template <std::size_t N, class S>
auto tie(S& s) {
  if constexpr (N == 0) {
    return std::tie();
  } else if constexpr (N == 1) {
    auto& [a] = s;
    return std::tie(a);
  } else if constexpr (N == 2) {
    auto& [a, b] = s;
    return std::tie(a, b);
  } else if constexpr (N == 3) {
    auto& [a, b, c] = s;
    return std::tie(a, b, c);
  } else if constexpr (N == 4) {
    auto& [a, b, c, d] = s;
    return std::tie(a, b, c, d);
  } else if constexpr (N == 5) {
    auto& [a, b, c, d, e] = s;
    return std::tie(a, b, c, d, e);
  } else if constexpr (N == 6) {
    auto& [a, b, c, d, e, f] = s;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (N == 7) {
    auto& [a, b, c, d, e, f, g] = s;
    return std::tie(a, b, c, d, e, f, g);
  } else {
    auto& [a, b, c, d, e, f, g, h] = s;
    return std::tie(a, b, c, d, e, f, g, h);
  }
}

}  // namespace members

/// f(i, member i of p, member i of q) for two aggregates of at most 8 members each.
template <class F, class P, class Q>
void for_each_member(F&& f, P& p, Q& q) {
  constexpr std::size_t count = members::count<std::remove_const_t<P>>();
  const auto left = members::tie<count>(p);
  const auto right = members::tie<count>(q);
  const auto parts = [&]<std::size_t... I>(std::index_sequence<I...>) {
    (f(static_cast<int>(I), std::get<I>(left), std::get<I>(right)), ...);
  };
  parts(std::make_index_sequence<count>{});
}

}  // namespace gatefold::test
