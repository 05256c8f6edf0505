#pragma once

#include <array>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/expert/expert.hpp"

namespace gatefold {

/// Experts of different kinds and sizes in one mixture, with `counts[i]` experts of kind i. Slot s is one row of work,
/// the item x[row(s)] for one expert.
///
///     z[s] = kind_i(x[row(s)]) for the experts [counts_0 + … + counts_{i−1}, counts_0 + … + counts_i)    (1)
///
/// Construct it as Experts{std::tuple{Mlp<Gelu>{…}, GatedMlp<Silu>{…}}, {2, 6}}, or, with the same meaning,
/// Experts<Mlp<Gelu>, GatedMlp<Silu>>{.kinds = {…, …}, .counts = {2, 6}}. Without counts there is one expert of each
/// kind. In a Mixture, the gate's number of experts can be left 0; it is then set to the sum of the counts.
/// Source: none; users of two other libraries asked for this feature (issue 6 of scattermoe, issue 1342 of
/// Megatron-LM).
/// @param x [N, in_dim] in items, z [S, out_dim] out
/// @throws ArgumentError unless all kinds have the same in_dim and out_dim, no count is negative, and the counts add up
///         to the gate's number of experts
/// @cost   the sum of the costs of the kinds; each kind allocates arrays for all S slots, but uses only the rows of its
///         own slots
template <class... K>
struct Experts {
  static constexpr std::size_t size = sizeof...(K);
  GATEFOLD_REQUIRE(
      size >= 1, "gatefold: Experts needs at least one kind of expert, for example Experts{std::tuple{a, b}, {2, 6}}");
  GATEFOLD_REQUIRE(!(detail_::policy::is_misplaced<K> || ...),
                   "gatefold: Experts takes a tuple of kinds and the number of experts of each: Experts{std::tuple{a, "
                   "b}, {2, 6}}, or Experts{std::tuple{a, b}} for one of each; see docs/how-to/extending.md#expert");
  GATEFOLD_REQUIRE(!(detail_::hook::expert::with_noise<K>() || ...),
                   "gatefold: a kind of Experts needs noise, but Experts does not pass noise to its kinds; see "
                   "docs/how-to/extending.md#expert");

  std::tuple<K...> kinds{};
  std::array<Index, size> counts{(sizeof(K) > 0 ? Index(1) : Index(0))...};

  template <class T, class B>
  struct Params {
    std::tuple<gatefold::Params<K, T, B>...> kinds;
    GATEFOLD_PACK(kinds)
  };
  template <class T, class B>
  struct Saved {
    std::tuple<gatefold::Saved<K, T, B>...> kinds;
  };

  Index in_dim() const { return std::get<0>(kinds).in_dim(); }
  Index out_dim() const { return std::get<0>(kinds).out_dim(); }
  Index experts() const { return std::accumulate(counts.begin(), counts.end(), Index(0)); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index total, Seed seed) const {
    expect_options("Experts.init", total);
    if constexpr (detail_::policy::parts_fit<Experts, T, B>()) {
      const auto each = [&]<std::size_t... At>(std::index_sequence<At...>) {
        return std::tuple<gatefold::Params<K, T, B>...>{
            std::get<At>(kinds).template init<T, B>(ctx, counts[At], seed.fork(At))...};
      };
      return {each(std::make_index_sequence<size>{})};
    } else {
      return {};
    }
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index total) const {
    expect_options("Experts", total);
    each_kind([&]<std::size_t At>() {
      const auto& kind = std::get<At>(kinds);
      const auto& params = std::get<At>(p.kinds);
      if constexpr (detail_::hook::expert::validate<std::remove_cvref_t<decltype(kind)>, T, B>())
        kind.validate(params, counts[At]);
    });
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    each_kind([&]<std::size_t At>() {
      std::get<At>(kinds).forward(ctx, std::get<At>(p.kinds), part<At>(groups), x, z, std::get<At>(saved.kinds));
    });
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    each_kind([&]<std::size_t At>() {
      infer_expert<T, B>(std::get<At>(kinds), ctx, std::get<At>(p.kinds), part<At>(groups), x, z);
    });
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    each_kind([&]<std::size_t At>() {
      std::get<At>(kinds).backward(ctx, std::get<At>(p.kinds), part<At>(groups), x, std::get<At>(saved.kinds), dz,
                                   dslots, std::get<At>(grads.kinds));
    });
  }

 private:
  void each_kind(const auto& f) const {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) { (f.template operator()<At>(), ...); };
    parts(std::make_index_sequence<size>{});
  }
  template <std::size_t At, class B>
  Groups<B> part(const Groups<B>& groups) const {
    return groups.experts(std::accumulate(counts.begin(), counts.begin() + At, Index(0)), counts[At]);
  }
  void expect_options(const char* where, Index total) const {
    each_kind([&]<std::size_t At>() {
      const auto& kind = std::get<At>(kinds);
      expect(counts[At] >= 0, where, Joined{"counts[", At, "]"}, "at least 0", counts[At]);
      expect(kind.in_dim() == in_dim(), where, Joined{"kinds[", At, "].in_dim"},
             Joined{in_dim(), " (the in_dim of kinds[0])"}, kind.in_dim());
      expect(kind.out_dim() == out_dim(), where, Joined{"kinds[", At, "].out_dim"},
             Joined{out_dim(), " (the out_dim of kinds[0])"}, kind.out_dim());
    });
    expect(experts() == total, where, "counts", Joined{"a sum of ", total, " (the gate's experts)"}, experts());
  }
};
template <class... K>
Experts(std::tuple<K...>) -> Experts<K...>;
template <class... K>
Experts(std::tuple<K...>, std::array<Index, sizeof...(K)>) -> Experts<K...>;
template <class First, class... Rest, class = std::enable_if_t<!detail_::pack::is_tuple<First>>>
Experts(First, Rest...) -> Experts<detail_::policy::Misplaced<First, Rest...>>;

namespace detail_::policy {

template <class... K>
struct Parts<Experts<K...>> {
  template <class T, class B>
  static constexpr bool check() {
    return (check_expert<K, T, B>() && ...);
  }
};

}  // namespace detail_::policy

}  // namespace gatefold
