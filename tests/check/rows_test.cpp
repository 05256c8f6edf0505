#include "gatefold/check/rows.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/heavy_ball.hpp"

using namespace gatefold;
using Sentences = std::vector<std::string>;

namespace {

/// An Independent mixing whose forward differs from its rows.
struct OtherMixing : Independent {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Nothing<T, B>& saved, const Nothing<T, B>& extra) const {
    Independent::forward<T, B>(ctx, p, x, z, q, saved, extra);
    q(1, 0) += T(0.25);
  }
};
/// A TopK whose forward takes fewer picks than its rows.
struct OtherSelection : TopK {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>& saved, const Nothing<T, B>& extra) const {
    TopK{.k = 1}.forward<T, B>(ctx, p, c, plan, saved, extra);
  }
};
template <class MixingT, class SelectionT>
auto mixture() {
  return Mixture{ComposedGate<LinearScores, MixingT, SelectionT>{.scores = {.experts = 4}}, Linear{.model_dim = 3}};
}
template <class L>
Sentences said(const L& layer) {
  return check::rows_unlike_forward<Cpu>(layer, Seed{1}, 7);
}

const std::string kMixing = "gate.mixing: forward and rows give different bits",
                  kSelection = "gate.selection: forward and rows give different picks or weights";

}  // namespace

TEST_CASE("rows: equal results pass, and gates without rows") {
  CHECK(said(mixture<Independent, TopK>()).empty());
  CHECK(said(Mixture{SoftmaxNoisyTop1{.scores = {.experts = 4}}, Linear{.model_dim = 3}}).empty());
  CHECK(said(Mixture{published::deepseek_v3({.experts = 4, .k = 2, .groups = 1, .top_groups = 1}),
                     Linear{.model_dim = 3}})
            .empty());
  CHECK(said(Linear{.model_dim = 3}).empty());
}

TEST_CASE("rows: a forward that differs from rows is found") {
  CHECK(said(mixture<OtherMixing, TopK>()) == Sentences{kMixing});
  CHECK(said(mixture<Independent, OtherSelection>()) == Sentences{kSelection});
  CHECK(said(Stack{Residual{update::HeavyBall{}, mixture<OtherMixing, OtherSelection>()}, 2}) ==
        Sentences{"layer.branch." + kMixing, "layer.branch." + kSelection});
  CHECK(said(Chain{Linear{.model_dim = 3}, Residual{update::HeavyBall{}, mixture<OtherMixing, TopK>()}}) ==
        Sentences{"layers.1.branch." + kMixing});
  const auto report = check::conformance<Cpu>(mixture<Independent, OtherSelection>());
  CHECK(report.sentences == Sentences{kSelection});
}
