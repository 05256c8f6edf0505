#include "gatefold/model/language_model.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/count_parameters.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/update/adam.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture_of(Index dim, Index experts) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                 Mlp<Relu>{.model_dim = dim, .hidden_dim = dim}};
}
/// What the papers round to, in tenths of a million.
Index tenths_of_million(Index count) { return (count + 50'000) / 100'000; }

/// The parts of a model that papers 001 and 002 count, each by hand: V words, width D, a window of L, E experts.
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

TEST_CASE("language models have as many parameters as those of papers 001 and 002") {
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

  // Norms before: one less in each layer with a mixture, and one after all layers.
  CHECK(count(LanguageSizes::medium(), switch_model(LanguageSizes::medium(), subtracted, mixture_of(352, 16))) ==
        by_hand(medium, 6) - 6 * medium.norm() + medium.norm());
  CHECK(count(s, glam_model(s, subtracted, mixture_of(352, 16), feed_forward)) ==
        pairs - 6 * glam.norm() + glam.norm());
  // A tied output layer learns its bias alone.
  LanguageSizes tied = s;
  tied.tied = true;
  CHECK(count(tied, glam_model<language::Reference>(tied, subtracted, mixture_of(352, 16), feed_forward)) ==
        pairs - glam.embedding());
}

namespace {

const LanguageSizes sizes{.vocabulary = 7, .model_dim = 4, .heads = 2, .window = 3, .depth = 2, .dropout = 0.2};

}  // namespace

TEST_CASE("gradients of a model of pairs whose gates look at the attention, Adam in its first mixture, with dropout") {
  const Mlp<Relu> expert{.model_dim = 4, .hidden_dim = 2};
  const auto model = glam_model<language::Traced>(
      sizes, update::First{update::Adam{.epsilon = 0.1}, update::HeavyBall{.mu = 0.6}},
      Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}, .selection = {.k = 2}}, expert}, expert);
  Cpu::Context ctx(1);
  const auto report = check::gradients(
      ctx, model, {.items = 6, .of_largest = 1e-8, .moved = 0.3},
      extra_of<Extra<decltype(model), double, Cpu>>(Segment<double, Cpu>{.length = 3, .noise = {Random{Seed{5}, 3}}}));
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("options that do not fit are said") {
  LanguageSizes none = sizes;
  none.heads = 0;
  CHECK(message_of([&] { switch_model(none, update::Plain{}, mixture_of(4, 3)); }) ==
        "LanguageSizes: heads: expected at least 1, got 0");
  const auto other = switch_model(sizes, update::Plain{}, mixture_of(6, 3));
  CHECK_THROWS_AS(count_parameters(other), ArgumentError);
}
