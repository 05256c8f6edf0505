#include "gatefold/gate/gate.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A gate of a user: item n goes to expert n mod E with a fixed weight; every fourth item goes to no expert.
struct RoundRobin {
  Index number = 3;

  template <class T, class B>
  using Plan = SparsePlan<T, B>;

  Index experts() const { return number; }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, SparsePlan<T, B>& plan, Nothing<T, B>&,
               const Nothing<T, B>&) const {
    plan.resize(x.extent(0), number, x.extent(0));
    for (Index n = 0; n < x.extent(0); ++n) {
      plan.item(n) = n;
      plan.expert(n) = n % 4 == 3 ? -1 : n % number;
      plan.weight(n) = T(0.5) + T(n);
    }
    plan.build(ctx);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, const SparsePlan<T, B>&, const Nothing<T, B>&,
                const typename SparsePlan<T, B>::Grad&, Out<T, 2, B>, Nothing<T, B>&, const Nothing<T, B>&,
                Nothing<T, B>&) const {}
};

}  // namespace

TEST_CASE("Gate: the concept accepts only gates") {
  CHECK(detail_::policy::Gate<SoftmaxTopK, float, Cpu>);
  CHECK(detail_::policy::Gate<SoftmaxDense, double, Cpu>);
  CHECK(detail_::policy::Gate<WithAuxiliary<SoftmaxTopK, Balance, ZLoss>, float, Cpu>);
  CHECK(detail_::policy::Gate<RoundRobin, double, Cpu>);
  CHECK(detail_::policy::check_gate<RoundRobin, double, Cpu>());
  CHECK_FALSE(detail_::policy::Gate<Linear, float, Cpu>);
  CHECK_FALSE(detail_::policy::Gate<TopK, float, Cpu>);
  CHECK_FALSE(detail_::policy::Gate<update::HeavyBall, float, Cpu>);
  CHECK_FALSE(detail_::policy::GateTypes<LinearScores, float, Cpu>);
}

TEST_CASE("Gate: a user-defined gate works in a mixture") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Mixture{RoundRobin{}, Linear{.model_dim = 3}}, 6);
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index j = 0; j < 3; ++j) {
      double expected = p.params.branch.expert.bias(n % 3, j);
      for (Index d = 0; d < 3; ++d) expected += p.x(n, d) * p.params.branch.expert.weight(n % 3, d, j);
      CHECK(p.y(n, j) == doctest::Approx(n == 3 ? 0 : (0.5 + double(n)) * expected).epsilon(1e-14));
    }
  const auto report =
      check::conformance<Cpu, double>(Mixture{RoundRobin{}, Linear{.model_dim = 3}}, {.gradients = {.items = 9}});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Gate: an item without picks has output and gradient 0") {
  Cpu::Context ctx(1);
  auto clean = pass<double>(ctx, Mixture{RoundRobin{}, Linear{.model_dim = 3}}, 8),
       poisoned = pass<double>(ctx, Mixture{RoundRobin{}, Linear{.model_dim = 3}}, 8);
  for (auto* p : {&clean, &poisoned}) p->forward();
  // Two picks of eight are dropped, so slots 6 and 7 are unused.
  REQUIRE(clean.saved.branch.plan.offsets(3) == 6);
  {
    // The scratch memory of the backward pass holds NaN in these slots.
    auto mark = ctx.mark();
    fill(ctx, ctx.scratch<double>(1000), quiet_nan);
  }
  for (auto* p : {&clean, &poisoned}) p->backward();
  CHECK(difference(poisoned.outcome(), clean.outcome()) == 0);
  for (const Index n : {3, 7})
    for (Index d = 0; d < 3; ++d) {
      CHECK(clean.y(n, d) == 0);
      CHECK(clean.dx(n, d) == 0);
    }
}

TEST_CASE("count_experts: reads a member or a function of the scores") {
  struct Option {
    Index experts = 5;
  };
  struct Function {
    Index experts() const { return 7; }
  };
  CHECK(count_experts(Option{}) == 5);
  CHECK(count_experts(Function{}) == 7);
}

TEST_CASE("active_experts: counts the experts of an item, at most all") {
  CHECK(active_experts(TopK{.k = 3}, 8) == 3);
  CHECK(active_experts(TopK{.k = 3}, 2) == 2);
  CHECK(active_experts(NoisyTop1<>{}, 8) == 1);
  CHECK(active_experts(Capacity{TopK{.k = 2}}, 8) == 2);
  CHECK(active_experts(Capacity{NoisyTop1<>{}}, 8) == 1);
  CHECK(active_experts(ExpertChoice{.factor = 2}, 8) == 2);
  CHECK(active_experts(ExpertChoice{.factor = 1.2}, 8) == 2);
  CHECK(active_experts(ExpertChoice{.factor = 20}, 8) == 8);
  CHECK(active_experts(Dense{}, 8) == 8);
  CHECK(active_experts(SoftMoe{}, 8) == 8);
  CHECK(active_experts(HashGate{.k = 2}, 8) == 2);
  CHECK(active_experts(SigmoidTopK{.selection = {.k = 4}}, 8) == 4);
}

TEST_CASE("ActiveExperts: an empty type takes no memory in parameters") {
  static_assert(std::is_empty_v<ActiveExperts<Cpu>>);
  using Gate = Params<SoftmaxTopK, float, Cpu>;
  using Expert = Params<Linear, float, Cpu>;
  static_assert(sizeof(Params<Mixture<SoftmaxTopK, Linear>, float, Cpu>) == sizeof(Gate) + sizeof(Expert));
}
