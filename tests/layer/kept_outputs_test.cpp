// Mixtures that keep no outputs of their experts, compared with mixtures that do.

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// An expert without weighted_backward, so that a mixture keeps its outputs.
template <class E>
struct KeepsOutputs {
  E expert;

  template <class T, class B>
  using Params = gatefold::Params<E, T, B>;
  template <class T, class B>
  using Saved = gatefold::Saved<E, T, B>;
  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return expert.out_dim(); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return expert.template init<T, B>(ctx, experts, seed);
  }
  template <template <class, class> class P, class T, class B, class G, class X, class Z, class S>
  void forward(auto& ctx, const P<T, B>& p, const G& groups, const X& x, const Z& z, S& saved) const {
    expert.forward(ctx, p, groups, x, z, saved);
  }
  template <template <class, class> class P, class T, class B, class G, class X, class S, class Z, class D>
  void backward(auto& ctx, const P<T, B>& p, const G& groups, const X& x, const S& saved, const Z& dz, const D& dslots,
                P<T, B>& grads) const {
    expert.backward(ctx, p, groups, x, saved, dz, dslots, grads);
  }
};
template <class E>
KeepsOutputs(E) -> KeepsOutputs<E>;

/// Runs forward and backward of layer_of(expert), which does not keep the outputs z of the experts, and of the same
/// layer with KeepsOutputs{expert}, which keeps z. Returns the largest difference between the two outcomes.
template <class E, class F>
double difference_from_kept(Cpu::Context& ctx, const E& expert, Index items, const F& layer_of) {
  auto without = pass<double>(ctx, layer_of(expert), items);
  auto with = pass<double>(ctx, layer_of(KeepsOutputs{expert}), items);
  for_each_tensor([&](const Name&, const auto& from, auto& to) { std::copy_n(from.data(), from.size(), to.data()); },
                  std::as_const(without.params), with.params);
  const auto run = [](auto& p) {
    p.forward();
    p.backward();
  };
  run(without);
  run(with);
  return difference(without.outcome(), with.outcome());
}
template <class F>
void expect_as_kept(Index items, const F& layer_of) {
  Cpu::Context ctx(2);
  CHECK(difference_from_kept(ctx, Mlp<Gelu>{.model_dim = 6, .hidden_dim = 15}, items, layer_of) <= 1e-12);
  CHECK(difference_from_kept(ctx, GatedMlp<Silu>{.model_dim = 6, .hidden_dim = 15}, items, layer_of) <= 1e-12);
  CHECK(difference_from_kept(ctx, GatedMlp<Silu>{.model_dim = 6, .hidden_dim = 15, .bias = true}, items, layer_of) <=
        1e-12);
  CHECK(difference_from_kept(ctx, Linear{.model_dim = 6}, items, layer_of) <= 1e-12);
}

}  // namespace

TEST_CASE("Mixture: gradients do not need stored expert outputs") {
  for (const Index k : {1, 2, 5})  // 5: all experts
    for (const Index items : {0, 1, 40}) {
      CAPTURE(k);
      CAPTURE(items);
      expect_as_kept(items, [&](const auto& expert) {
        return Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = k, .renormalise = false}}, expert};
      });
    }
  SUBCASE("more experts than items") {
    expect_as_kept(3, [](const auto& expert) {
      return Mixture{SoftmaxTopK{.scores = {.experts = 60}, .selection = {.k = 2}}, expert};
    });
  }
  SUBCASE("dropped picks") {
    expect_as_kept(40, [](const auto& expert) {
      return Mixture{ComposedGate<LinearScores, Independent, Capacity<TopK>>{
                         .scores = {.experts = 5}, .selection = {.selection = {.k = 2}, .factor = 0.6}},
                     expert};
    });
  }
  SUBCASE("with a shared expert, in a rule that evaluates twice") {
    expect_as_kept(30, [](const auto& expert) {
      return Residual{update::SharpnessAware{},
                      WithShared{Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}}, expert},
                                 Linear{.model_dim = 6}}};
    });
  }
}

TEST_CASE("Mixture: keeps expert outputs only if backward reads them") {
  Cpu::Context ctx(1);
  const auto kept = [&](const auto& gate, const auto& expert) {
    auto p = pass<float>(ctx, Mixture{gate, expert}, 9);
    p.forward();
    return p.saved.branch.z.size();
  };
  const SoftmaxTopK gate{.scores = {.experts = 3}, .selection = {.k = 2}};
  const Mlp<Gelu> mlp{.model_dim = 6, .hidden_dim = 5};
  CHECK(kept(gate, mlp) == 0);
  CHECK(kept(gate, GatedMlp<Silu>{.model_dim = 6, .hidden_dim = 5}) == 0);
  CHECK(kept(gate, Linear{.model_dim = 6}) == 0);
  CHECK(kept(gate, KeepsOutputs{mlp}) == 18 * 6);
  CHECK(kept(SoftMoe{.count = 3}, mlp) == 3 * 6);
}
