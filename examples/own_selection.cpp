// Implements your own selection (the part of a gate that picks experts).
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// [snippet own-selection]
struct TopP {  // the best experts until their probabilities sum to p; at least one, at most `most`
  double p = 0.8;
  Index most = 4;
  template <class T, class B>
  struct Pick {
    View<const T, 2, B> rank, q;
    T p;
    Index most;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;
    GATEFOLD_HD void operator()(Index n) const {
      T sum = 0;
      for (Index j = n * most; j < (n + 1) * most; ++j) {
        item(j) = n, expert(j) = no_pick, weight(j) = 0;  // an unused place, unless a pick is written below
        if (sum >= p) continue;
        Index best = -1;  // the best expert after the previous pick; ties to the lower index, NaN last
        for (Index e = 0; e < q.extent(1); ++e)
          if ((j == n * most || functor::ranks_before(rank(n, expert(j - 1)), expert(j - 1), rank(n, e), e)) &&
              (best < 0 || functor::ranks_before(rank(n, e), e, rank(n, best), best)))
            best = e;
        expert(j) = best, weight(j) = q(n, best);
        sum += q(n, best);
      }
    }
  };
  template <class T, class B>
  struct PickBackward {
    View<const Index, 1, B> expert;
    View<const T, 1, B> dweight;
    View<T, 2, B> dq;
    Index most;
    GATEFOLD_HD void operator()(Index n) const {
      for (Index j = n * most; j < (n + 1) * most; ++j)
        if (expert(j) >= 0) dq(n, expert(j)) += dweight(j);
    }
  };
  void validate_options(Index experts) const {
    expect(most >= 1 && most <= experts, "TopP", "most", Joined{"1 <= most <= ", experts}, most);
  }
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan, auto&&...) const {
    plan.resize(c.q.extent(0), c.q.extent(1), c.q.extent(0) * most);  // items, experts, places for picks
    B::for_each(ctx, c.q.extent(0), Pick<T, B>{c.rank, c.q, T(p), most, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  template <class T, class B>
  void backward(auto& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan, auto&&,
                const auto& dplan, const CandidatesGrad<T, B>& d, auto&&...) const {
    B::for_each(ctx, c.q.extent(0), PickBackward<T, B>{plan.expert, dplan.weight, d.q, most});
  }
};
using SoftmaxTopP = ComposedGate<LinearScores, Independent, TopP>;
using SimilarTopP = ComposedGate<CosineScores, TokenSimilarity, TopP, Balance>;  // with any scores, mixing and losses
// [/snippet]

int main() {
  const Mlp<Gelu> mlp{.model_dim = 4, .hidden_dim = 5};
  const auto alone = check::conformance<Cpu>(Mixture{SoftmaxTopP{.scores = {.experts = 6}}, mlp});
  const auto similar =
      check::conformance<Cpu>(Mixture{SimilarTopP{.scores = {.experts = 6}, .mixing = {.tau = 2}}, mlp});
  std::printf("%s\n%s\n", alone.str().c_str(), similar.str().c_str());
  return alone && similar ? 0 : 1;
}
