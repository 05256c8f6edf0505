#include "measure.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <gatefold/papers/routed_trainer.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <utility>
#include <vector>

#include "../support/routing_measures.hpp"
#include "fit.hpp"

using namespace studies;
using namespace studies::mot;
using namespace gatefold;

namespace {

/// A trained model, made by hand, for four classes and no noise. Its weights are sums of the centers and features of
/// the classes, so that all results are known in advance.
struct Case {
  Setting setting;
  Cpu::Context ctx{1};
  Data data{ctx, setting, Seed{3}};
  Mixture<SoftmaxNoisyTop1, AttentionExpert> mixture{
      {.scores = {.model_dim = 50, .experts = setting.experts, .length = 8, .bias = false, .initial = Initial::zero()}},
      {.model_dim = 50, .length = 8}};
  RoutedTrainer<float, Cpu::Context, Mixture<SoftmaxNoisyTop1, AttentionExpert>, Logistic> trainer{ctx, mixture,
                                                                                                   Logistic{}, Seed{1}};

  /// A model with zero weights.
  explicit Case(Index experts) : setting{.experts = experts, .samples = 8, .test = 64, .noise = 0} {
    set_zero(ctx, trainer.params);
  }
  /// A model with four experts. Each has learned one class, and gets the items of that class.
  Case() : Case(4) {
    for (Index i = 0; i < 4; ++i) {
      route(i, i, 10, 0);
      know(i, i, 2);
      for (Index j = 0; j < 50; ++j) trainer.params.expert.value(i, j, 0) -= 3 * data.signals.center(i, j);
    }
  }
  /// Adds size times the signal of class n to the neuron of expert i.
  void know(Index i, Index n, float size) {
    for (Index j = 0; j < 50; ++j) trainer.params.expert.value(i, j, 0) += size * data.signals.feature(n, j);
  }
  /// Adds c · center + v · signal of class n to the router's weights of expert i.
  void route(Index i, Index n, float c, float v) {
    for (Index j = 0; j < 50; ++j)
      trainer.params.gate.scores.weight(j, i) += c * data.signals.center(n, j) + v * data.signals.feature(n, j);
  }
  Json measured() {
    trainer.evaluate(data.test.x, data.test.target);
    return specialists(ctx, data, neurons(trainer.params.expert), trainer.saved.plan);
  }
  /// Returns the number of test items of class n with the label y.
  double count(Index n, int y) const {
    double sum = 0;
    for (Index k = 0; k < 64; ++k) sum += data.test.cluster(k) == n && (data.test.target(k, 0) > 0) == (y > 0) ? 1 : 0;
    return sum;
  }
  double count(Index n) const { return count(n, 1) + count(n, -1); }
};

void check_numbers(const Json& found, const std::vector<std::pair<const char*, double>>& expected) {
  for (const auto& one : expected) {
    CAPTURE(one.first);
    CHECK_LE(std::abs(found[one.first].get<double>() - one.second), 1e-6);
  }
}

/// Returns the mean of |s_1 + … + s_c| over all 2^c combinations of signs s_i = ±1.
double mean_over_signs(int c) {
  double sum = 0;
  for (int signs = 0; signs < 1 << c; ++signs) sum += std::abs(c - 2 * std::popcount(static_cast<unsigned>(signs)));
  return sum / (1 << c);
}

}  // namespace

TEST_CASE("specialists: measures experts that know and get one class each") {
  Case c;
  const Json found = c.measured();
  double more = 0, squares = 0;
  for (Index n = 0; n < 4; ++n) {
    more += std::abs(c.count(n, 1) - c.count(n, -1));
    squares += c.count(n) * c.count(n);
  }
  check_numbers(found, {{"margin", 2},
                        {"least_margin", 2},
                        {"covered", 4},
                        {"used", 4},
                        {"share", 1},
                        {"share_by_chance", squares / 64 / 64},
                        {"uneven", 0},
                        {"own", 2},
                        {"other", 0},
                        {"used_own", 2},
                        {"used_other", 0},
                        {"center", 0.75},
                        {"one_label", more / 64}});
  for (Index n = 0; n < 4; ++n)
    for (Index i = 0; i < 4; ++i) {
      CHECK(found["routing"][std::size_t(n)][std::size_t(i)] == (i == n ? 1 : 0));
      CHECK(found["center_alignment"][std::size_t(i)][std::size_t(n)].get<double>() ==
            doctest::Approx(i == n ? -3 : 0).scale(1).epsilon(1e-6));
    }
}

TEST_CASE("specialists: measures two experts per class that split labels") {
  Case c(8);
  for (Index n = 0; n < 4; ++n) {
    c.know(2 * n, n, n == 0 ? 0.5f : 2.0f);  // margin 1/2 or 2
    c.know(2 * n + 1, n, 4);                 // margin 3
    c.know(2 * n + 1, (n + 1) % 4, 1);
    c.route(2 * n, n, 10, 4);
    c.route(2 * n + 1, n, 10, -4);
  }
  double uneven = 0, chance = 0;
  for (Index n = 0; n < 4; ++n) {
    REQUIRE(c.count(n, 1) != c.count(n, -1));
    uneven = std::max(uneven, std::abs(c.count(n, 1) / c.count(n) - 0.5));
    for (const int y : {1, -1}) chance += mean_over_signs(static_cast<int>(c.count(n, y)));
  }
  check_numbers(c.measured(), {{"margin", (0.5 + 3 * 2 + 4 * 3) / 8},
                               {"least_margin", 0.5},
                               {"covered", 4},
                               {"used", 8},
                               {"share", 1},
                               {"uneven", uneven},
                               {"one_label", 1},
                               {"one_label_by_chance", chance / 64},
                               {"own", (0.5 + 3 * 2 + 4 * 4) / 8},
                               {"other", 4 * (1.0 / 3) / 8}});
}

TEST_CASE("specialists: measures classes with three, one and no experts") {
  Case c(4);
  for (const Index i : {0, 1, 2}) c.know(i, 0, 1);
  c.know(3, 1, 3);
  c.route(0, 0, 10, 4);   // expert 0 gets the items of label +1
  c.route(1, 0, 10, -4);  // expert 1 gets the items of label −1, expert 2 gets no items
  for (const Index n : {1, 2, 3}) c.route(3, n, 10, 0);
  const double all = c.count(0), positive = c.count(0, 1) / all, rest = 64 - all;
  check_numbers(c.measured(),
                {{"covered", 2},
                 {"used", 3},
                 {"share", (all + c.count(1)) / 64},
                 {"share_by_chance", (all * all + rest * c.count(1)) / 64 / 64},
                 {"uneven", std::max({std::abs(positive - 1.0 / 3), std::abs(1 - positive - 1.0 / 3), 1.0 / 3})},
                 {"margin", (3 * 1 + 3.0) / 4},
                 {"used_own", (2 * 1 + 3.0) / 3}});
}

TEST_CASE("specialists: measures one expert that gets all items") {
  Case c;
  set_zero(c.ctx, c.trainer.params.gate);  // equal scores: all items go to expert 0
  check_numbers(c.measured(), {{"used", 1}, {"share", c.count(0) / 64}, {"share_by_chance", c.count(0) / 64}});
}

TEST_CASE("mean_of_signs: equals the mean over all combinations of signs") {
  for (int count = 0; count <= 16; ++count)
    CHECK(mean_of_signs(count) == doctest::Approx(mean_over_signs(count)).epsilon(1e-13));
}

TEST_CASE("largest_score: returns the mean largest score over items") {
  Case c(4);
  double expected = 0;
  for (Index n = 0; n < 4; ++n) {
    c.route(n, n, static_cast<float>(n + 1), 0);
    expected += static_cast<double>(n + 1) * c.count(n) / 64;
  }
  const double found = largest_score(c.data.test.x, std::as_const(c.trainer.params.gate.scores.weight).view());
  CHECK(found == doctest::Approx(expected).epsilon(1e-6));
}

TEST_CASE("attention: weights for K_i = s v_i v_iᵀ equal softmax") {
  Case c;
  const double s = 2, rest = 7, total = std::exp(s) + rest;
  for (Index i = 0; i < 4; ++i)
    for (Index a = 0; a < 50; ++a)
      for (Index b = 0; b < 50; ++b)
        c.trainer.params.expert.key_query(i, a, b) =
            static_cast<float>(s) * c.data.signals.feature(i, a) * c.data.signals.feature(i, b);
  c.trainer.evaluate(c.data.test.x, c.data.test.target);
  const auto of = metric::specialisation(c.ctx, neurons(c.trainer.params.expert), c.data.signals.feature);
  const auto [specialists, routed] = attention(c.ctx, c.data, std::as_const(c.trainer.params.expert.key_query).view(),
                                               of, c.trainer.saved.plan.expert);
  for (const studies::mot::Attention& p : {specialists, routed})
    for (std::size_t a = 0; a < kKinds; ++a)
      for (std::size_t b = 0; b < kKinds; ++b)
        CHECK(p[a][b] == doctest::Approx(a > 0 ? 0.125 : b > 0 ? 1 / total : std::exp(s) / total).epsilon(1e-6));
}

TEST_CASE("shapes: fits exponential and power laws and tells them apart") {
  std::vector<double> t, exponential, power;
  for (int i = 0; i < 20; ++i) {
    t.push_back(i);
    exponential.push_back(3 * std::exp(-0.2 * i));
    power.push_back(i > 0 ? 2.0 / i : NAN);
  }
  const auto e = shapes(t, exponential), p = shapes(t, power);
  CHECK(e.exponential.slope == doctest::Approx(-0.2).epsilon(1e-13));
  CHECK(e.exponential.r2 == doctest::Approx(1).epsilon(1e-13));
  CHECK(e.power.r2 < 0.95);
  CHECK(p.power.slope == doctest::Approx(-1).epsilon(1e-13));
  CHECK(p.power.r2 == doctest::Approx(1).epsilon(1e-13));
  CHECK(p.exponential.r2 < 0.95);
  CHECK(shapes({0, 1, 2}, {1, 1, 1}).power.slope == 0);  // only two points with t > 0: no fit
}

TEST_CASE("RoutingMeasures: equal plain loops over the items of two passes") {
  Case c(3);
  c.route(0, 0, 0.5f, 0.25f);
  c.route(0, 2, 0.37f, 0.11f);
  c.route(1, 1, 0.29f, 0.53f);
  c.route(2, 3, 0.17f, 0.07f);
  for (Index i = 0; i < 3; ++i) c.know(i, i, 0.5f * float(i + 1));
  RoutingMeasures measures;
  double entropy = 0, norm = 0;
  std::vector<double> load(3);
  for (const auto& [first, count] : {std::pair{Index(0), Index(24)}, {Index(24), Index(40)}}) {
    c.trainer.evaluate(c.data.test.x.view().rows(first, count), c.data.test.target.view().rows(first, count));
    measures.add(c.ctx, c.trainer.saved, c.trainer.expert_output());
    for (Index n = first; n < first + count; ++n) {
      std::vector<double> h(3);
      for (Index i = 0; i < 3; ++i)
        for (Index j = 0; j < 400; ++j)
          h[std::size_t(i)] += double(c.data.test.x(n, j)) * double(c.trainer.params.gate.scores.weight(j % 50, i));
      std::vector<double> sorted = h;
      std::sort(sorted.begin(), sorted.end());
      REQUIRE(sorted[2] - sorted[1] > 1e-4);  // so that float and double pick the same expert
      const auto best = std::size_t(std::max_element(h.begin(), h.end()) - h.begin());
      ++load[best];
      double total = 0;
      for (const double one : h) total += std::exp(one);
      for (const double one : h) entropy -= std::exp(one) / total * (one - std::log(total)) / 64;
      norm += std::abs(double(c.trainer.expert_output()(n - first, 0))) / 64;
    }
  }
  double squares = 0;
  for (const double one : load) squares += (one - 64.0 / 3) * (one - 64.0 / 3) / 3;
  // The numbers are neither those of one expert nor those of equal experts.
  REQUIRE((entropy > 0.1 && entropy < std::log(3) - 0.01 && squares > 0 && norm > 0.1));
  Json log;
  measures.append(log);
  measures.append(log);
  for (const auto& [name, expected] :
       {std::pair{"routing_entropy", entropy}, {"load_variation", std::sqrt(squares) / (64.0 / 3)}, {"norm", norm}}) {
    CAPTURE(name);
    REQUIRE(log[name].size() == 2);
    CHECK(log[name][0].get<double>() == doctest::Approx(expected).epsilon(5.1e-4));  // four digits
    CHECK(log[name][0] == log[name][1]);
  }
}
