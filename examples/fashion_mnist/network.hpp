#pragma once

#include <gatefold/policies.hpp>
#include <tuple>

#include "../training/place.hpp"
#include "options.hpp"

namespace fashion {

using namespace gatefold;

/// Picks K experts at random. The router determines only the weights of the picks. The accuracy that a trained model
/// keeps with this selection is not due to its routing.
struct RandomK {
  Index k = 1;

  template <class T, class B>
  using Extra = Random;

  template <class T, class B>
  struct Draw {
    View<const T, 2, B> q;
    Index k;
    Random random;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;
    GATEFOLD_HD double key(Index n, Index e) const {
      return uniform<double>(random.seed, random.step, static_cast<std::uint64_t>(n * q.extent(1) + e));
    }
    GATEFOLD_HD void operator()(Index n) const {
      T total = 0;
      for (Index j = 0; j < k; ++j) {
        Index best = -1;
        for (Index e = 0; e < q.extent(1); ++e) {
          bool taken = false;
          for (Index i = 0; i < j; ++i) taken = taken || expert(n * k + i) == e;
          if (!taken && (best < 0 || key(n, e) > key(n, best))) best = e;
        }
        item(n * k + j) = n;
        expert(n * k + j) = best;
        weight(n * k + j) = q(n, best);
        total += q(n, best);
      }
      for (Index j = 0; j < k; ++j) weight(n * k + j) /= total;
    }
  };

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Random& random) const {
    plan.resize(c.q.extent(0), c.q.extent(1), c.q.extent(0) * k);
    B::for_each(ctx, c.q.extent(0), Draw<T, B>{c.q, k, random, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Adds the gradient of the routing probabilities q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Random&) const {
    B::for_each(ctx, c.q.extent(0),
                functor::PickTopKBackward<T, B>{c.q, plan.expert, plan.weight, dplan.weight, k, true, d.q});
  }
};

/// Makes the network: patches → tokens → residual mixtures of experts → classes. One input item is a whole image, which
/// has `tokens` patches.
template <class RuleT, class GateT, class PlaceT = training::OneProcess>
auto network(const Options& o, const RuleT& rule, const GateT& gate, const PlaceT& place = {}) {
  const auto mixture = place.branch(Mixture{gate, Mlp<Gelu>{o.dim, o.hidden}});
  return Chain{
      PerToken{o.tokens(), Chain{Linear{.model_dim = o.patch * o.patch, .output_dim = o.dim},
                                 Stack{Residual{rule, PreNorm{LayerNorm{}, mixture}}, o.layers}, LayerNorm{o.dim}}},
      Linear{.model_dim = o.tokens() * o.dim, .output_dim = 10}};
}

}  // namespace fashion
