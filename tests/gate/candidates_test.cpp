#include "gatefold/gate/candidates.hpp"

#include <doctest/doctest.h>

#include <gatefold/gatefold.hpp>
#include <type_traits>

using namespace gatefold;

namespace {

/// Remembers nothing; records what a selection is shown.
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
  /// Adds 1, 2 and 3 to the three adjoints, so that the test sees which of them go where.
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

TEST_CASE("candidates: a selection sees the items, the logits as rank, and the softmax") {
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

  SUBCASE("and its adjoints reach x, through the logits where they belong") {
    // dq constant per row is annihilated by the softmax (rows sum to 1), so dz = drank = 2 and
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
