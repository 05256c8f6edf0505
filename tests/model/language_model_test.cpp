#include "gatefold/model/language_model.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/metric/metric.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/adam.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/golden.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture_of(Index dim, Index experts) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                 Mlp<Relu>{.model_dim = dim, .hidden_dim = dim}};
}
/// Rounds to tenths of a million, as the papers do.
Index tenths_of_million(Index count) { return (count + 50'000) / 100'000; }

/// The parts of a model that papers 001 and 002 count, each computed by hand: V words, width D, a window of L, E
/// experts.
struct Terms {
  Index v, d, l, e, heads = 8;
  Index embedding() const { return v * d; }
  Index output() const { return v * d + v; }
  Index places() const { return l * (d / heads); }
  Index attention() const { return 4 * d * d; }                  // query, key, value, output, without bias
  Index network() const { return 2 * d * d + 2 * d; }            // as wide inside as outside, two biases
  Index mixture() const { return (d * e + e) + e * network(); }  // the gate's weights and bias, the experts
  Index norm() const { return 2 * d; }                           // gain and bias
  Index outside() const { return embedding() + output() + places(); }
};

}  // namespace

TEST_CASE("language models: parameter counts equal those of papers 001, 002") {
  const auto count = [](const LanguageSizes& s, const auto& model) { return count_parameters(model, s.loss()); };
  const update::HeavyBall subtracted{.mu = 0.7, .gamma = -1};
  const auto switched = [&](const LanguageSizes& s) {
    return count(s, switch_model<language::Reference>(s, subtracted, mixture_of(s.model_dim, 16)));
  };
  const Terms medium{267735, 352, 1024, 16}, large{267735, 512, 2048, 16}, glam{267735, 352, 2048, 16};

  const auto by_hand = [](const Terms& t, Index depth) {  // norms after attention, inside the mixture, after it
    return t.outside() + depth * (t.attention() + t.mixture() + 3 * t.norm());
  };
  CHECK(by_hand(medium, 6) == 215'675'639);
  CHECK(by_hand(large, 12) == 388'137'623);
  CHECK(switched(LanguageSizes::medium()) == by_hand(medium, 6));
  CHECK(switched(LanguageSizes::large()) == by_hand(large, 12));
  CHECK(tenths_of_million(switched(LanguageSizes::medium())) == 2157);
  CHECK(tenths_of_million(switched(LanguageSizes::large())) == 3881);

  const LanguageSizes s = LanguageSizes::glam_medium();
  const Mlp<Relu> feed_forward{s.model_dim, s.model_dim};
  const Index pairs = count(s, glam_model<language::Reference>(s, subtracted, mixture_of(352, 16), feed_forward));
  CHECK(pairs == glam.outside() + 6 * (2 * glam.attention() + glam.mixture() + glam.network() + 5 * glam.norm()));
  CHECK(pairs == 220'193'911);
  CHECK(tenths_of_million(pairs) == 2202);

  // With norms before the branches there is one norm less in each layer with a mixture, and one after all layers.
  CHECK(count(LanguageSizes::medium(), switch_model(LanguageSizes::medium(), subtracted, mixture_of(352, 16))) ==
        by_hand(medium, 6) - 6 * medium.norm() + medium.norm());
  CHECK(count(s, glam_model(s, subtracted, mixture_of(352, 16), feed_forward)) ==
        pairs - 6 * glam.norm() + glam.norm());
  // The Traced model has a learned row of width D for each position, and no keys of relative positions.
  CHECK(count(s, glam_model<language::Traced>(s, subtracted, mixture_of(352, 16), feed_forward)) ==
        pairs - 6 * glam.norm() + glam.norm() - glam.places() + glam.l * glam.d);
  // A tied output layer learns only its bias.
  LanguageSizes tied = s;
  tied.tied = true;
  CHECK(count(tied, glam_model<language::Reference>(tied, subtracted, mixture_of(352, 16), feed_forward)) ==
        pairs - glam.embedding());
}

namespace {

constexpr Index sequences = 2, length = 4, items = sequences * length;
const LanguageSizes sizes{.vocabulary = 8, .model_dim = 4, .heads = 2, .window = 3, .depth = 2};
const Mlp<Relu> expert{.model_dim = 4, .hidden_dim = 2};
const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, expert};

/// Compares loss and gradients with a case of tests/golden/models.py, and the probabilities of the output layer. The
/// mean of the items' losses and the metric must give the same perplexity.
template <class ModelT>
void check_case(Golden& g, const ModelT& model, Index zeros = 0) {
  CAPTURE(g.name);
  Cpu::Context ctx(2);
  const StreamedCrossEntropy output = sizes.loss();
  auto params = init_params<double, Cpu>(model, ctx, Seed{1});
  auto of_output = init_params<double, Cpu>(output, ctx, Seed{2});
  g.read("params.model", params);
  g.read("params.loss", of_output);
  auto grads = zeros_like(ctx, params);
  auto grads_of_output = zeros_like(ctx, of_output);
  SegmentMemory<double, Cpu> memory(
      ctx, {.layers = 2 * sizes.depth, .sequences = sequences, .width = sizes.model_dim, .most = sizes.window});
  memory.begin(ctx, zeros);
  Segment<double, Cpu> segment{.length = length};
  if (zeros > 0) segment.memory = memory.of(length);
  const auto extra = extra_of<Extra<ModelT, double, Cpu>>(segment);
  const auto ids = g.indices("ids"), target = g.indices("target");

  Carry<ModelT, double, Cpu> carry;
  Saved<ModelT, double, Cpu> saved;
  Saved<StreamedCrossEntropy, double, Cpu> saved_of_output;
  Tensor<double, 2, Cpu> h(items, sizes.model_dim), dh(items, sizes.model_dim), log_p(items, sizes.vocabulary);
  Tensor<double, 1, Cpu> value(1), each(items);
  model.begin(ctx, params, items, carry);
  model.forward(ctx, params, ids, carry, h, saved, extra);
  output.forward(ctx, of_output, params, h, target, value, saved_of_output);
  output.backward(ctx, of_output, params, h, target, saved_of_output, dh, grads_of_output, grads);
  set_zero(ctx, carry);
  backward(model, ctx, params, ids, saved, dh, carry, Nothing<double, Cpu>{}, grads, extra);
  g.compare("h", values(h));
  g.compare("value", values(value));
  g.compare("grads.model", grads);
  g.compare("grads.loss", grads_of_output);

  output.log_probabilities(ctx, of_output, params, h, log_p);
  g.compare("log_probabilities", values(log_p));
  output.each(ctx, of_output, params, h, target, each);
  double mean = 0;
  for (Index n = 0; n < items; ++n) mean += each(n) / double(items);
  const double perplexity = metric::perplexity(ctx, log_p.view(), target);
  CHECK(std::exp(mean) == doctest::Approx(perplexity).epsilon(1e-13));
  CHECK(std::exp(g.values("value")[0]) == doctest::Approx(perplexity).epsilon(1e-10));
  g.flag("pairs");
  CHECK(g.unread() == "");
}

}  // namespace

TEST_CASE("golden: Switch and GLaM language models agree with PyTorch") {
  for (Golden& g : Golden::read_all("model/language")) {
    // Plain equals heavy ball without momentum to the bit (tests/update), so one type serves both and compiles once.
    const double sign = g.name == "glam_heavy_ball_reference" ? -1 : 1;
    const update::HeavyBall rule{.mu = g.option("mu"), .gamma = sign * g.option("gamma")};
    if (sign < 0) {
      check_case(g, glam_model<language::Reference>(sizes, rule, mixture, expert), sizes.window);
    } else if (g.flag("pairs")) {
      check_case(g, glam_model(sizes, rule, mixture, expert));
    } else {
      check_case(g, switch_model(sizes, rule, mixture));
    }
  }
}

TEST_CASE("language models: gradients with Adam and dropout are correct") {
  LanguageSizes dropped = sizes;
  dropped.dropout = 0.2;
  const auto model = switch_model<language::Traced>(
      dropped, update::First{update::Adam{.epsilon = 0.1}, update::HeavyBall{.mu = 0.6}},
      Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}, .selection = {.k = 2}}, expert});
  Cpu::Context ctx(1);
  const auto report = check::gradients(
      ctx, model, {.items = 6, .of_largest = 1e-8, .moved = 0.3},
      extra_of<Extra<decltype(model), double, Cpu>>(Segment<double, Cpu>{.length = 3, .noise = {Random{Seed{5}, 3}}}));
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("language models: traced attention restarts positions in each sequence") {
  const auto model = switch_model<language::Traced>(
      sizes, update::HeavyBall{.mu = 0.6},
      Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}, .selection = {.k = 2}}, expert});
  using Model = AsLayer<decltype(model), double, Cpu>;
  Cpu::Context ctx(1);
  const auto params = init_params<double, Cpu>(model, ctx, Seed{1});
  const auto read = [&](const std::vector<Index>& ids, Index length) {
    Tensor<double, 2, Cpu> y(static_cast<Index>(ids.size()), sizes.model_dim);
    Carry<Model, double, Cpu> carry;
    model.begin(ctx, params, y.extent(0), carry);
    infer(model, ctx, params, ids, carry, y,
          extra_of<Extra<Model, double, Cpu>>(Segment<double, Cpu>{.length = length}));
    return values(y);
  };
  const std::vector<double> one = read({5, 2}, 2), twice = read({5, 2, 5, 2}, 2);
  CHECK(std::vector<double>(twice.begin(), twice.begin() + 8) == one);
  CHECK(std::vector<double>(twice.begin() + 8, twice.end()) == one);
  CHECK(message_of([&] { read({5, 2, 5, 2}, 4); }) == "Embedding: sequence.length: expected at most places = 3, got 4");
}

TEST_CASE("language models: gradients with memory and traces are correct") {
  LanguageSizes dropped = sizes;
  dropped.dropout = 0.2;
  const Mixture attending{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}, .selection = {.k = 2}}, expert};
  Cpu::Context ctx(1);
  const auto past = uniform_tensor<double>(ctx, Seed{7}, 1, 8, 4, 4);
  const std::vector<double> valid{1, 1, 1, 1, 1, 0};  // the second sequence has ended
  const auto check = [&](const auto& model, Index attentions) {
    const auto report =
        check::gradients(ctx, model, {.items = 6, .of_largest = 1e-8, .moved = 0.3},
                         extra_of<Extra<std::remove_cvref_t<decltype(model)>, double, Cpu>>(
                             Segment<double, Cpu>{.length = 3,
                                                  .noise = {Random{Seed{5}, 3}},
                                                  .memory = {past.view().rows(0, attentions * dropped.depth), {}},
                                                  .valid = valid}));
    CHECK_MESSAGE(report, report.str());
  };
  using language::WithTrace;
  check(switch_model<WithTrace<language::PreNormed>>(dropped, update::HeavyBall{.mu = 0.6}, attending), 1);
  check(
      glam_model<WithTrace<language::Reference>>(dropped, update::HeavyBall{.mu = 0.6, .gamma = -1}, attending, expert),
      2);
}

TEST_CASE("language models: windowed attention-aware gates add no parameters") {
  const LanguageSizes s = LanguageSizes::medium();
  const update::HeavyBall rule{.mu = 0.7, .gamma = -1};
  CHECK(count_parameters(switch_model<language::WithTrace<language::Reference>>(s, rule, mixture_of(352, 16)),
                         s.loss()) == 215'675'639);
}

TEST_CASE("language models: wrong options throw") {
  LanguageSizes none = sizes;
  none.heads = 0;
  CHECK(message_of([&] { switch_model(none, update::Plain{}, mixture_of(4, 3)); }) ==
        "LanguageSizes: heads: expected at least 1, got 0");
  const auto other = switch_model(sizes, update::Plain{}, mixture_of(6, 3));
  CHECK_THROWS_AS(count_parameters(other), ArgumentError);
}

TEST_CASE("labels_of_last (2): only the last item has the label") {
  CHECK(labels_of_last({4, 0}, 3) == std::vector<Index>{-1, -1, 4, -1, -1, 0});
  CHECK(labels_of_last({4, 0}, 1, -7) == std::vector<Index>{4, 0});
  CHECK(labels_of_last({}, 3).empty());
  CHECK_THROWS_AS(labels_of_last({1}, 0), ArgumentError);
}

TEST_CASE("classifier (1): equals the layers written out") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, classifier(Linear{.model_dim = 3, .output_dim = 2}, 4), 5);
  p.forward();
  const auto& [first, second, third] = p.params.layers;
  for (Index n = 0; n < 5; ++n) {
    double h[2], f[2];
    for (Index d = 0; d < 2; ++d) {
      h[d] = first.branch.expert.bias(0, d);
      for (Index k = 0; k < 3; ++k) h[d] += p.x(n, k) * first.branch.expert.weight(0, k, d);
    }
    for (Index d = 0; d < 2; ++d) {
      f[d] = second.branch.branch.expert.bias(0, d);
      for (Index k = 0; k < 2; ++k) f[d] += h[k] * second.branch.branch.expert.weight(0, k, d);
    }
    for (Index c = 0; c < 4; ++c) {
      double y = third.branch.expert.bias(0, c);
      for (Index k = 0; k < 2; ++k) y += f[k] * third.branch.expert.weight(0, k, c);
      CHECK(p.y(n, c) == doctest::Approx(y).epsilon(1e-13));
    }
  }
}

TEST_CASE("classifier: learns labels; an additional softmax keeps the loss high") {
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    Cpu::Context ctx(1);
    Trainer trainer{ctx, classifier(Embedding{.vocabulary = 6, .model_dim = 4}, 2, 0),
                    twice ? CrossEntropy::reference({.ignore = -1}) : CrossEntropy{.ignore = -1},
                    optim::AdamW{.lr = 0.05, .decay = 0}, Seed{3}};
    const std::vector<Index> ids{0, 1, 2, 3, 4, 5}, target = labels_of_last({1, 0, 1}, 2);
    double loss = 0;
    for (int s = 0; s < 200; ++s) loss = trainer.step(ids, target);
    CHECK(loss >= (twice ? 0.31326 : 0));
    CHECK(loss < (twice ? 0.33 : 0.01));
  }
}

TEST_CASE("classifier: needs at least one class") {
  CHECK(message_of([] { (void)classifier(Linear{.model_dim = 3}, 0); }) ==
        "classifier: classes: expected at least 1, got 0");
}
