#pragma once

#include <cstdint>

#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PickByHash);

/// A router without parameters that picks experts by the hash of an item's token. The more even the distribution of the
/// tokens, the more even is the load of the experts.
///
///     h_0 = mix(seed ⊕ mix(id)),   h_j = mix(h_{j−1})                                                   (1)
///     e_j = the (h_j mod (E − j))-th of the experts not in {e_0, …, e_{j−1}},   j < K,   w = 1/K        (2)
///
/// `mix` is the function mix64, the finaliser of splitmix64.
/// Source: Roller et al. 2021, arXiv:2106.04426, sec. 3 (random hash).
/// @param extra  ids [N]: the token of each item. The values of x are not read. An item with a negative id goes to no
///               expert; its picks in the plan are dropped picks of expert 0
/// @throws ArgumentError unless 1 <= k <= count and there is one id per item
/// @cost   about N·K² comparisons if K is much smaller than E, N·K³ at most; S = N·K picks
/// @order  the picks of an item are distinct; equal ids and seeds give equal experts on every backend
struct HashGate {
  Index count = 0, k = 1;
  Seed seed{};

  template <class T, class B>
  using Params = Nothing<T, B>;
  template <class T, class B>
  using Plan = SparsePlan<T, B>;
  template <class T, class B>
  struct Extra {
    Required<View<const Index, 1, B>> ids;  // [N]
  };

  Index experts() const { return count; }
  HashGate with_experts(Index of_experts) const {
    expect(count == 0 || count == of_experts, "HashGate", "count",
           Joined{of_experts, " (the number of experts in the expert policy of the Mixture) or 0"}, count);
    return {of_experts, k, seed};
  }

  template <class T, class B>
  Nothing<T, B> init(typename B::Context&, Seed) const {
    expect_options();
    return {};
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Extra<T, B>& extra) const {
    expect_options();
    expect_shape("HashGate", "extra.ids", extra.ids.value, {items});
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, SparsePlan<T, B>& plan, Nothing<T, B>&,
               const Extra<T, B>& extra = {}) const {
    validate(p, x.extent(0), extra);
    plan.resize(x.extent(0), count, x.extent(0) * k);
    B::for_each(ctx, x.extent(0),
                functor::PickByHash<T, B>{extra.ids.value, count, k, seed, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Does nothing, because a hash gate has no parameters and its choice does not depend on x.
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, auto&&...) const {}

 private:
  void expect_options() const { expect(k >= 1 && k <= count, "HashGate", "k", Joined{"1 <= k <= count = ", count}, k); }
};

namespace functor {

template <class T, class B>
struct PickByHash {
  View<const Index, 1, B> ids;
  Index experts, k;
  Seed seed;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  /// Returns the expert with index `rank`, counted from 0, among the experts that the item has not picked yet. The
  /// item's previous picks are picks `first` … `first + count − 1` of the plan. The result is the smallest e with e =
  /// rank + (number of previous picks <= e).
  GATEFOLD_HD Index other(Index first, Index count, Index rank) const {
    for (Index e = rank;;) {
      Index passed = 0;
      for (Index i = first; i < first + count; ++i) passed += expert(i) <= e;
      if (e == rank + passed) return e;
      e = rank + passed;
    }
  }
  GATEFOLD_HD void operator()(Index n) const {
    std::uint64_t hash = mix64(seed.value ^ mix64(static_cast<std::uint64_t>(ids(n))));
    for (Index j = 0; j < k; ++j, hash = mix64(hash)) {
      const Index rank = static_cast<Index>(hash % static_cast<std::uint64_t>(experts - j));
      item(n * k + j) = n;
      expert(n * k + j) = ids(n) < 0 ? ~Index(0) : other(n * k, j, rank);
      weight(n * k + j) = T(1) / T(k);
    }
  }
};

}  // namespace functor

}  // namespace gatefold
