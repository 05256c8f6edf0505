#pragma once

#include <gatefold/gatefold.hpp>

namespace studies::expert_count {

using namespace gatefold;

/// The "top-k gating" in the outlook of paper 003. Picks the set T of the K experts with the largest h + r (score plus
/// noise), and weights each by its probability without noise: F = Σ_{m ∈ T} π_m f_m. For K = 1 it is NoisyTop1.
struct UniformTopK {
  Index k = 2;

  template <class T, class B>
  using Extra = Noise;

  template <class T, class B>
  struct Pick {
    View<const T, 2, B> rank, q;
    functor::Draw<UniformNoise, T> noise;
    Index k;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;
    GATEFOLD_HD T value(Index n, Index e) const { return rank(n, e) + noise(n * rank.extent(1) + e); }
    GATEFOLD_HD void operator()(Index n) const {
      T last{};
      for (Index j = n * k; j < (n + 1) * k; ++j) {
        T top{};
        Index best = -1;
        for (Index e = 0; e < rank.extent(1); ++e) {
          const T v = value(n, e);
          if (j > n * k && !functor::ranks_before(last, expert(j - 1), v, e)) continue;
          if (best >= 0 && !functor::ranks_before(v, e, top, best)) continue;
          best = e;
          top = v;
        }
        item(j) = n;
        expert(j) = best;
        weight(j) = q(n, best);
        last = top;
      }
    }
  };
  template <class T, class B>
  struct PickBackward {
    View<const Index, 1, B> expert;
    View<const T, 1, B> dweight;
    Index k;
    View<T, 2, B> dq;
    GATEFOLD_HD void operator()(Index n) const {
      for (Index j = n * k; j < (n + 1) * k; ++j) dq(n, expert(j)) += dweight(j);
    }
  };

  void validate_options(Index experts) const {
    expect(k >= 1 && k <= experts, "UniformTopK", "k", Joined{"1 <= k <= experts = ", experts}, k);
  }
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan, Nothing<T, B>&,
               const Noise& noise) const {
    plan.resize(c.q.extent(0), c.q.extent(1), c.q.extent(0) * k);
    B::for_each(ctx, c.q.extent(0),
                Pick<T, B>{c.rank, c.q, functor::draw<UniformNoise, T>(noise), k, plan.item, plan.expert, plan.weight});
    plan.build_complete(ctx);
  }
  template <class T, class B>
  void backward(auto& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const auto& dplan, const CandidatesGrad<T, B>& d, Nothing<T, B>&,
                const Noise&) const {
    B::for_each(ctx, c.q.extent(0), PickBackward<T, B>{plan.expert, dplan.weight, k, d.q});
  }
};

}  // namespace studies::expert_count
