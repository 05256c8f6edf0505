#include "gatefold/gate/candidates.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

/// A selection that picks as TopK{} does, and saves views of its candidates instead of values.
struct Spy {
  template <class T, class B>
  struct Saved {
    View<const T, 2, B> x, rank, q;
  };
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Nothing<T, B>&) const {
    saved.x = c.x;
    saved.rank = c.rank;
    saved.q = c.q;
    TopK{}.forward(ctx, Nothing<T, B>{}, c, plan, nothing<T, B>(), Nothing<T, B>{});
  }
  /// Adds 1, 2 and 3 to the adjoints of x, rank and q, so that the test sees where each of them goes.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>&, const SparsePlan<T, B>&,
                const Saved<T, B>&, const typename SparsePlan<T, B>::Grad&, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Nothing<T, B>&) const {
    auto add_to = [&](View<T, 2, B> v, T amount) {
      for (Index i = 0; i < v.size(); ++i) v.data()[i] += amount;
    };
    (void)ctx;
    add_to(d.x, 1);
    add_to(d.rank, 2);
    add_to(d.q, 3);
  }
  template <class T, class B>
  static Nothing<T, B>& nothing() {
    static Nothing<T, B> none;
    return none;
  }
};

}  // namespace

TEST_CASE("Candidates: refer to the items, logits and probabilities") {
  Cpu::Context ctx;
  const ComposedGate<LinearScores, Independent, Spy> gate{.scores = {.model_dim = 3, .experts = 4}};
  const auto params = gate.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 3);
  SparsePlan<double, Cpu> plan;
  Saved<decltype(gate), double, Cpu> saved;
  gate.forward(ctx, params, x, plan, saved, {});
  CHECK(saved.selection.x.data() == x.data());
  CHECK(saved.selection.rank.data() == saved.logits.data());
  CHECK(saved.selection.q.data() == saved.probabilities.data());

  SUBCASE("adjoints reach x, through the logits if necessary") {
    // A dq that is constant per row gives no gradient through the softmax, whose rows sum to 1. So dz = drank = 2 and
    // dx = 1 + Σ_e 2 W[d,e]; dW[d,e] = Σ_n 2 x[n,d]; db = 2 N.
    Tensor<double, 2, Cpu> dx(5, 3);
    set_zero(ctx, dx);
    auto grads = zeros_like(ctx, params);
    auto mark = ctx.mark();
    ExtraGrad<decltype(gate), double, Cpu> dextra;
    gate.backward(ctx, params, x, plan, saved, plan.grad(ctx), dx, grads, {}, dextra);
    for (Index d = 0; d < 3; ++d) {
      double row = 1, column = 0;
      for (Index e = 0; e < 4; ++e) row += 2 * params.scores.weight(d, e);
      for (Index n = 0; n < 5; ++n) {
        CHECK(dx(n, d) == doctest::Approx(row).epsilon(1e-12));
        column += 2 * x(n, d);
      }
      for (Index e = 0; e < 4; ++e) CHECK(grads.scores.weight(d, e) == doctest::Approx(column).epsilon(1e-12));
    }
    for (Index e = 0; e < 4; ++e) CHECK(grads.scores.bias(e) == doctest::Approx(10).epsilon(1e-12));
  }
}

namespace {

/// Picks the best experts, at most `most`, until their probabilities sum to at least p. Unused entries of the plan are
/// no_pick, also if the gate calls `rows` instead of `forward`.
struct TopP {
  double p = 0.6;
  Index most = 3;

  template <class T, class B>
  struct Pick {
    View<const T, 2, B> rank, q;
    T p;
    Index most;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;

    template <class Lanes>
    void choose(const Lanes&, Index n) const {
      std::vector<Index> order(static_cast<std::size_t>(rank.extent(1)));
      for (Index e = 0; e < rank.extent(1); ++e) order[static_cast<std::size_t>(e)] = e;
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return rank(n, a) > rank(n, b); });
      double total = 0, sum = 0;
      for (Index e = 0; e < rank.extent(1); ++e) total += std::exp(double(rank(n, e)));
      for (Index j = 0; j < most; ++j) {
        item(n * most + j) = n;
        expert(n * most + j) = sum < double(p) * total ? order[static_cast<std::size_t>(j)] : no_pick;
        sum += std::exp(double(rank(n, order[static_cast<std::size_t>(j)])));
      }
    }
    template <class Lanes>
    void weigh(const Lanes&, Index n) const {
      for (Index j = n * most; j < (n + 1) * most; ++j) weight(j) = expert(j) >= 0 ? q(n, expert(j)) : T(0);
    }
    template <class Lanes>
    void operator()(const Lanes& lanes, Index n) const {
      choose(lanes, n);
      weigh(lanes, n);
    }
  };
  template <class T, class B>
  struct PickBackward {
    View<const Index, 1, B> expert;
    View<const T, 1, B> dweight;
    View<T, 2, B> dq;
    Index most;
    template <class Lanes>
    void operator()(const Lanes&, Index n) const {
      for (Index j = n * most; j < (n + 1) * most; ++j)
        if (expert(j) >= 0) dq(n, expert(j)) += dweight(j);
    }
  };
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>& extra) const {
    B::for_rows(ctx, c.q.extent(0), rows(c, plan, extra));
    plan.build(ctx);
  }
  template <class T, class B>
  Pick<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Nothing<T, B>&) const {
    plan.resize(c.q.extent(0), c.q.extent(1), c.q.extent(0) * most);
    return {c.rank, c.q, T(p), most, plan.item, plan.expert, plan.weight};
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Nothing<T, B>& extra) const {
    B::for_rows(ctx, c.q.extent(0), rows_backward(c, plan, dplan, d.q, extra));
  }
  template <class T, class B>
  PickBackward<T, B> rows_backward(const Candidates<T, B>&, const SparsePlan<T, B>& plan,
                                   const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq,
                                   const Nothing<T, B>&) const {
    return {plan.expert, dplan.weight, dq, most};
  }
};

}  // namespace

TEST_CASE("row selections: unused entries of the plan are no_pick") {
  const ComposedGate<LinearScores, Independent, TopP> gate{.scores = {.model_dim = 3, .experts = 4}};
  static_assert(detail_::policy::RowByRow<Independent, TopP, double, Cpu>);
  Cpu::Context ctx(1);
  const auto params = gate.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 3, 20, 3);
  SparsePlan<double, Cpu> plan, inferred;
  Saved<decltype(gate), double, Cpu> saved;
  gate.forward(ctx, params, x, plan, saved, {});
  gate.infer(ctx, params, x, inferred, {});

  Index picks = 0, unused = 0;
  for (Index n = 0; n < 20; ++n) {
    double z[4], total = 0;
    for (Index e = 0; e < 4; ++e) {
      z[e] = params.scores.bias.size() ? params.scores.bias(e) : 0.0;
      for (Index d = 0; d < 3; ++d) z[e] += x(n, d) * params.scores.weight(d, e);
      total += std::exp(z[e]);
    }
    double sum = 0;
    for (Index j = 0; j < 3; ++j) {
      Index best = -1;
      for (Index e = 0; e < 4; ++e) {
        bool taken = false;
        for (Index i = 0; i < j; ++i) taken = taken || plan.expert(n * 3 + i) == e;
        if (!taken && (best < 0 || z[e] > z[best])) best = e;
      }
      const bool used = sum < 0.6 * total;
      CHECK(plan.expert(n * 3 + j) == (used ? best : no_pick));
      CHECK(inferred.expert(n * 3 + j) == plan.expert(n * 3 + j));
      if (used) CHECK(plan.weight(n * 3 + j) == doctest::Approx(std::exp(z[best]) / total).epsilon(1e-12));
      ++(used ? picks : unused);
      sum += std::exp(z[best]);
    }
  }
  CHECK(picks > 20);
  CHECK(unused > 0);
  CHECK(plan.offsets(4) == picks);
  CHECK(inferred.offsets(4) == picks);
  const auto report =
      check::conformance<Cpu, double>(Mixture{gate, Linear{.model_dim = 3}}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

namespace {

struct ClaimsAll : TopP {
  static constexpr bool complete_picks = true;
};

}  // namespace

TEST_CASE("row selections: unused entries with complete_picks throw") {
  const ComposedGate<LinearScores, Independent, ClaimsAll> gate{.scores = {.model_dim = 3, .experts = 4}};
  Cpu::Context ctx(1);
  const auto params = gate.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 3, 20, 3);
  SparsePlan<double, Cpu> plan;
  CHECK_THROWS_WITH_AS((gate.infer<double, Cpu>(ctx, params, x, plan, {})),
                       "SparsePlan.build_complete: expert: expected an expert for each pick, because the selection "
                       "declares complete_picks, got dropped or unused picks",
                       ArgumentError);
}

namespace {

/// Functors that log their calls in order.
struct Mix {
  std::string* log;
  template <class Lanes>
  void operator()(const Lanes&, Index n) const {
    *log += "mix " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void row(const Lanes&, Index, const double* z, double* q) const {
    *log += "mix " + std::to_string(z[0]).substr(0, 1) + ";";
    q[0] = 2 * z[0];
  }
};
struct Pick {
  std::string* log;
  View<double, 2, Cpu> dq{};
  template <class Lanes>
  void choose(const Lanes&, Index n) const {
    *log += "choose " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void weigh(const Lanes&, Index n) const {
    *log += "weigh " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void choose(const Lanes&, Index, const double* rank) const {
    *log += "choose " + std::to_string(rank[0]).substr(0, 1) + ";";
  }
  template <class Lanes>
  void weigh(const Lanes&, Index, const double* q) const {
    *log += "weigh " + std::to_string(q[0]).substr(0, 1) + ";";
  }
  template <class Lanes>
  void operator()(const Lanes&, Index n) const {
    *log += "pick " + std::to_string(n) + ";";
    dq(n, 1) += 3;
  }
};

}  // namespace

TEST_CASE("RouteRow: chooses before mixing and computes weights after it") {
  Cpu::Context ctx(1);
  std::string log;
  Cpu::for_rows(ctx, 1, functor::RouteRow{Mix{&log}, Pick{&log}});
  CHECK(log == "choose 0;mix 0;weigh 0;");
}

TEST_CASE("RouteRowAnywhere: writes q to its row or over the logits") {
  Tensor<double, 2, Cpu> q(2, 1);
  std::string log;
  double z[] = {3};
  const OneLane lanes{};
  functor::RouteRowAnywhere{Mix{&log}, Pick{&log}, q.view()}(lanes, Index(1), z);
  CHECK(log == "choose 3;mix 3;weigh 6;");
  CHECK(q(1, 0) == 6);
  CHECK(z[0] == 3);
  log.clear();
  functor::RouteRowAnywhere{Mix{&log}, Pick{&log}, View<double, 2, Cpu>(nullptr, 2, 1)}(lanes, Index(1), z);
  CHECK(log == "choose 3;mix 3;weigh 6;");
  CHECK(z[0] == 6);
}

TEST_CASE("RouteRowBackward: dq starts at 0 or at given values") {
  Cpu::Context ctx(1);
  for (const bool accumulate : {false, true}) {
    Tensor<double, 2, Cpu> dq(1, 2);
    dq(0, 0) = 5, dq(0, 1) = 7;
    std::string log;
    Cpu::for_rows(ctx, 1, functor::RouteRowBackward{Mix{&log}, Pick{&log, dq.view()}, dq.view(), accumulate});
    CHECK(log == "pick 0;mix 0;");
    CHECK(dq(0, 0) == (accumulate ? 5 : 0));
    CHECK(dq(0, 1) == (accumulate ? 10 : 3));
  }
}
