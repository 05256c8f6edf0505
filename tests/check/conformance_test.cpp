#include "gatefold/check/conformance.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/update/momentum.hpp"

using namespace gatefold;

namespace {

enum class Fault {
  none,
  wrong_gradient,
  hidden_state,
  threads_forward,
  threads_backward,
  order_of_items,
  overwrites_dx,
  overwrites_grads,
  other_infer,
  sees_the_batch,
  refuses_no_items,
  keeps_scratch,
  grows_scratch,
};

int calls = 0;  // a hidden state

/// dweight[d] += dy[n,d] · tanh(x[n,d]) in the order in which threads reach the items. A mutex prevents races, but the
/// rounding of the sums depends on the order.
template <class T, class B>
struct AddAsTheyCome {
  View<const T, 2, B> x, dy;
  View<T, 1, B> dweight;
  std::mutex* one_at_a_time;
  void operator()(Index n) const {
    const std::lock_guard lock(*one_at_a_time);
    for (Index d = 0; d < x.extent(1); ++d) dweight(d) += dy(n, d) * std::tanh(x(n, d));
  }
};

/// A layer y = weight ⊙ tanh(x) with faults.
struct Faulty {
  Index dim = 4;
  Fault fault = Fault::none;

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    static void each(auto&& f, auto&... p) { f("weight", p.weight...); }
  };

  Index in_dim() const { return dim; }
  Index out_dim() const { return dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, dim)};
  }
  template <class T, class B>
  void begin(typename B::Context&, const Params<T, B>&, Index, Nothing<T, B>&) const {}
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Nothing<T, B>&, Out<T, 2, B> y,
               Nothing<T, B>&, const Nothing<T, B>& = {}) const {
    const Index items = x.extent(0);
    if (fault == Fault::refuses_no_items && items == 0) throw std::invalid_argument("no items");
    if (fault == Fault::keeps_scratch) ctx.template scratch<T>(10);
    const auto mark = ctx.mark();
    if (fault == Fault::grows_scratch && sizeof(T) == 4) ctx.template scratch<char>(Index(++calls) << 21);
    T shift = 0;
    if (fault == Fault::hidden_state) shift = static_cast<T>(++calls) / 1000;
    if (fault == Fault::threads_forward && ctx.threads() == 3) shift = T(1e-3);
    for (Index n = 0; n < items; ++n)
      for (Index d = 0; d < dim; ++d) y(n, d) = p.weight(d) * std::tanh(x(n, d)) + shift;
    if (fault == Fault::sees_the_batch && items > 1) y(0, 0) += x(items - 1, 0);
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Nothing<T, B>& carry, Out<T, 2, B> y,
             const Nothing<T, B>& extra = {}) const {
    Nothing<T, B> discarded;
    forward(ctx, p, x, carry, y, discarded, extra);
    if (fault == Fault::other_infer && y.size() > 0) y(0, 0) = std::nextafter(y(0, 0), std::numeric_limits<T>::max());
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> dy,
                Nothing<T, B>&, Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    if (fault == Fault::overwrites_dx) fill(ctx, dx, 0);
    if (fault == Fault::overwrites_grads) set_zero(ctx, grads);
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) {
        const T t = std::tanh(x(n, d));
        dx(n, d) += dy(n, d) * p.weight(d) * (1 - t * t);
        if (fault == Fault::order_of_items) continue;
        grads.weight(d) += dy(n, d) * (fault == Fault::wrong_gradient ? 2 * t : t);
      }
    if (fault == Fault::order_of_items) {
      std::mutex one_at_a_time;
      B::for_each(ctx, x.extent(0), AddAsTheyCome<T, B>{x, dy, grads.weight, &one_at_a_time});
    }
    if (fault == Fault::sees_the_batch && x.extent(0) > 1) dx(x.extent(0) - 1, 0) += dy(0, 0);
    if (fault == Fault::threads_backward && ctx.threads() == 2) grads.weight(0) *= T(1 + 1e-6);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>& saved,
                In<T, 2, B> dy, Nothing<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads,
                const Nothing<T, B>& extra = {}) const {
    Nothing<T, B> unused;
    backward(ctx, p, x, saved, dy, dcarry, dx, grads, extra, unused);
  }
};

/// u[n] = scale[n] · x[n]: a branch that needs an extra input for each item.
struct Scaled {
  template <class T, class B>
  struct Extra {
    View<const T, 1, B> scale;  // [N]
  };
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Extra<T, B>& extra, const Step& step = {}) const {
    expect_shape("Scaled.forward", "extra.scale", extra.scale, {x.extent(0)});
    for (Index i = 0; i < x.size(); ++i) u.data()[i] = extra.scale(i / 2) * x.data()[i];
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Extra<T, B>& extra, Nothing<T, B>&) const {
    for (Index i = 0; i < x.size(); ++i) dx.data()[i] += extra.scale(i / 2) * du.data()[i];
  }
};

/// y = gain ⊙ x + shift, where Params does not list the shift, so the gradient of the shift has no memory.
struct LeftOut {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> gain, shift;
    static void each(auto&& f, auto&... p) { f("gain", p.gain...); }
  };
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, 2), uniform_tensor<T>(ctx, seed.fork(1), 1, 2)};
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& = {}, const Step& step = {}) const {
    for (Index i = 0; i < x.size(); ++i) u.data()[i] = p.gain(i % 2) * x.data()[i] + p.shift(i % 2);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B>, Out<T, 2, B>,
                Params<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    FAIL("a pack that does not list what it has is not run");
  }
};

/// Computes p ← p / 2 + x and y = gain ⊙ p with the carry p, and saves p for backward. With `unlisted_carry`, the Carry
/// does not list p. With `sums`, forward wrongly adds p to the `saved` of earlier calls.
enum class Keeping { all, unlisted_carry, sums };
template <Keeping how>
struct Keeps {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> gain;
    static void each(auto&& f, auto&... p) { f("gain", p.gain...); }
  };
  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> p;
    static void each([[maybe_unused]] auto&& f, auto&... c) {
      if constexpr (how != Keeping::unlisted_carry) f("p", c.p...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> p;
  };

  Index in_dim() const { return 3; }
  Index out_dim() const { return 3; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, 3)};
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>&, Index items, Carry<T, B>& c) const {
    c.p.resize(items, 3);
    set_zero(ctx, c.p);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& c, Out<T, 2, B> y,
               Saved<T, B>& saved, const Nothing<T, B>& = {}) const {
    const bool begins = saved.p.size() != x.size();
    saved.p.resize(x.extent(0), 3);
    if (begins || how != Keeping::sums) set_zero(ctx, saved.p);
    for (Index i = 0; i < x.size(); ++i) {
      c.p.data()[i] = c.p.data()[i] / 2 + x.data()[i];
      saved.p.data()[i] += c.p.data()[i];
      y.data()[i] = p.gain(i % 3) * c.p.data()[i];
    }
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, In<T, 2, B> dy,
                Carry<T, B>& dc, Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index i = 0; i < x.size(); ++i) {
      const T d = dc.p.data()[i] + p.gain(i % 3) * dy.data()[i];
      grads.gain(i % 3) += saved.p.data()[i] * dy.data()[i];
      dx.data()[i] += d;
      dc.p.data()[i] = d / 2;
    }
  }
};
template <Keeping how>
std::vector<std::string> sentences_of_keeping() {
  const auto report = check::conformance<Cpu>(Keeps<how>{});
  CHECK_MESSAGE(report.gradients, report.str());
  return report.sentences;
}

check::ConformanceReport report_of(Fault fault, bool items_are_independent = false) {
  calls = 0;
  return check::conformance<Cpu>(Faulty{.fault = fault}, {.items_are_independent = items_are_independent});
}

/// Returns the only sentence of the report, or a text with all its sentences or with the errors of the gradients.
std::string sentence_of(Fault fault, bool items_are_independent = false) {
  const auto report = report_of(fault, items_are_independent);
  if (!report.gradients) return "gradients: " + report.gradients.str();
  if (report.sentences.size() == 1) return report.sentences[0];
  return std::to_string(report.sentences.size()) + " sentences: " + report.str();
}

}  // namespace

TEST_CASE("conformance: a correct layer passes") {
  const auto report = report_of(Fault::none, true);
  CHECK_MESSAGE(report, report.str());
  CHECK(report.sentences.empty());
  CHECK(report.gradients.checked == 7 * 4 + 4);
}

TEST_CASE("conformance: each fault is found and reported once") {
  CHECK(sentence_of(Fault::threads_forward) == "different bits on 3 threads than on 1");
  CHECK(sentence_of(Fault::threads_backward) == "different bits on 2 threads than on 1");
  const std::string does_not_add =
      "backward must add to dx and grads: two passes do not give twice the gradients of one pass";
  CHECK(sentence_of(Fault::overwrites_dx) == does_not_add);
  CHECK(sentence_of(Fault::overwrites_grads) == does_not_add);
  CHECK(sentence_of(Fault::other_infer) == "infer and forward give different bits");
  CHECK(sentence_of(Fault::refuses_no_items) == "a batch of no items throws: no items");
  CHECK(sentence_of(Fault::keeps_scratch) ==
        "scratch memory was not released: write `auto mark = ctx.mark();` before ctx.scratch");
  CHECK(sentence_of(Fault::grows_scratch) ==
        "scratch memory grew in the second step of the same sizes: take as much ctx.scratch in every step");
}

TEST_CASE("conformance: dependence on the loop order is always found") {
  for (int i = 0; i < 10; ++i)
    CHECK(report_of(Fault::order_of_items).sentences ==
          std::vector<std::string>{"different bits on 2 threads than on 1", "different bits on 3 threads than on 1",
                                   "different bits on 8 threads than on 1"});
}

TEST_CASE("conformance: items that depend on the batch are found") {
  CHECK(report_of(Fault::sees_the_batch));
  CHECK(sentence_of(Fault::sees_the_batch, true) == "item 0 gives different bits alone than in the batch");
}

TEST_CASE("conformance: hidden state is found") {
  const auto report = report_of(Fault::hidden_state);
  CHECK_FALSE(report);
  REQUIRE_FALSE(report.sentences.empty());
  CHECK(report.sentences[0] == "two runs from the same seed differ: is there state outside the arguments?");
}

TEST_CASE("conformance: a wrong gradient is reported with its tensor") {
  const auto report = report_of(Fault::wrong_gradient);
  CHECK_FALSE(report);
  CHECK(report.sentences.empty());
  REQUIRE(report.gradients.sentences.size() == 1);
  CHECK(report.gradients.sentences[0].rfind("weight[0]: numeric ", 0) == 0);
  CHECK(report.str().rfind("gradients: 32 checked, 0 skipped, worst ", 0) == 0);
}

TEST_CASE("conformance: state kept between batches is found") {
  const std::vector<std::string> after_another{
      "different bits after another batch: forward must set every tensor of Saved, begin every tensor of Carry, and "
      "`each` of Carry must list all its tensors"};
  CHECK(sentences_of_keeping<Keeping::all>().empty());
  CHECK(sentences_of_keeping<Keeping::unlisted_carry>() == after_another);
  CHECK(sentences_of_keeping<Keeping::sums>() == after_another);
}

TEST_CASE("conformance: an unlisted tensor is reported before other checks") {
  const auto report = check::conformance<Cpu>(PreNorm{LayerNorm{}, LeftOut{}});
  CHECK_FALSE(report);
  REQUIRE(report.sentences.size() == 1);
  CHECK(report.sentences[0].rfind("params.branch: ", 0) == 0);
}

TEST_CASE("ConformanceReport: str lists gradients and sentences") {
  check::ConformanceReport report;
  report.gradients.checked = 2;
  CHECK(report);
  report.sentences.push_back("wrong");
  CHECK_FALSE(report);
  CHECK(report.str() == "gradients: 2 checked, 0 skipped, worst 0\n  wrong");
}

TEST_CASE("conformance: calls extra(element type, first, count) for extra inputs") {
  const std::vector<double> of_double{1, -2, 3, -4, 5, -6, 7};
  const std::vector<float> of_float(of_double.begin(), of_double.end());
  auto extra = [&]<class T>(Element<T>, Index first, Index count) -> Scaled::Extra<T, Cpu> {
    if constexpr (sizeof(T) == 8) {
      return {View<const T, 1, Cpu>(of_double).rows(first, count)};
    } else {
      return {View<const T, 1, Cpu>(of_float).rows(first, count)};
    }
  };
  const auto report = check::conformance<Cpu>(Scaled{}, {.items_are_independent = true}, extra);
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("conformance: a stack of mixtures passes with independent items") {
  const Stack stack{Residual{update::HeavyBall{.mu = 0.5, .gamma = 0.5},
                             PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                          Mlp<Gelu>{.model_dim = 4, .hidden_dim = 6}}}},
                    2};
  const auto report = check::conformance<Cpu>(stack, {.gradients = {.seed = Seed{2}}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

using Sentences = std::vector<std::string>;

namespace {

/// An Independent mixing whose forward gives other probabilities than its hook `rows`.
struct OtherMixing : Independent {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Nothing<T, B>& saved, const Nothing<T, B>& extra) const {
    Independent::forward<T, B>(ctx, p, x, z, q, saved, extra);
    q(1, 0) += T(0.25);
  }
};
/// A TopK whose forward makes fewer picks than its hook `rows`.
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
  return check::rows_unlike_forward<float, Cpu>(layer, Seed{1}, 7);
}

const std::string kMixing = "gate.mixing: forward and rows give different bits",
                  kSelection = "gate.selection: forward and rows give different picks or weights";

}  // namespace

TEST_CASE("rows: equal results and gates without `rows` pass") {
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
