// Gates whose items share their probabilities by similarity or attention: CUDA compared with the naive backend.
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

using Similar = SimilarityAware<SoftmaxTopK>;
using Attentive = AttentionAware<SoftmaxTopK>;

/// Checks one sequence; several sequences with padding and more experts than a warp has lanes; no item; and one item,
/// which has no other item to attend to.
template <class T, class G>
void expect_same_of(const G& gate, bool causal, const std::vector<std::string>& zeros,
                    const std::vector<std::string>& alone) {
  // Similarities and attention scores are sums of products. An exponential then magnifies their rounding errors, so the
  // tolerances are larger than for other gates.
  constexpr double scale = 20, rounding = 100 * relative_tolerance<T> / 1e3;
  Backends on;
  const auto run = [&](Index experts, Index width, Case c) {
    c.causal = causal;
    c.expected.scale = scale;
    expect_same_gate<T>(on, with_experts(gate, experts), width, c);
  };
  SUBCASE("one sequence") { run(5, 6, {.items = 33, .expected = {.zeros = zeros}}); }
  SUBCASE("sequences, padding, 40 experts") {
    run(40, 6, {.items = 30, .length = 10, .padding = true, .expected = {.zeros = zeros}});
  }
  SUBCASE("no item") { run(3, 4, {.items = 0, .expected = {.zeros = {"grads", "dtrace"}}}); }
  SUBCASE("one item") { run(3, 4, {.items = 1, .expected = {.zeros = alone, .rounding = rounding}}); }
}
template <class T = double>
void expect_same_similar(const TokenSimilarity& mixing) {
  expect_same_of<T>(Similar{.mixing = mixing}, true, {}, {"grads.mixing"});
}
template <class T = double>
void expect_same_attentive(const AttentionPosterior& mixing, bool causal = true) {
  // With one head the log-sum-exp scales all weights by the same factor. Their normalisation removes it, so it gets no
  // gradient.
  const bool every = mixing.head == FollowedHead::every;
  expect_same_of<T>(Attentive{.mixing = mixing}, causal,
                    every ? std::vector<std::string>{} : std::vector<std::string>{"dtrace.log_sum_exp"}, {"dtrace"});
}

}  // namespace

TEST_CASE("TokenSimilarity: matches the naive backend") { expect_same_similar({}); }
TEST_CASE("TokenSimilarity, float: matches the naive backend") { expect_same_similar<float>({}); }
TEST_CASE("TokenSimilarity, not causal, small tau: matches the naive backend") {
  expect_same_similar({.tau = 0.2, .causal = false});
}
TEST_CASE("TokenSimilarity, tau per call: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, Similar{.scores = {.experts = 5}}, 6,
                           {.items = 33, .tau = 0.2, .expected = {.scale = 20}});
  // With so large a tau, every item gets the mean probabilities of all items, so all rows are equal.
  const Similar gate = with_model_dim(Similar{.scores = {.experts = 5}, .mixing = {.causal = false}}, 6);
  const auto params = init_params<double, Cuda>(gate, on.cuda, Seed{1});
  const auto x = uniform_tensor<double>(on.cuda, Seed{2}, 1, 33, 6);
  Plan<Similar, double, Cuda> plan;
  Saved<Similar, double, Cuda> saved;
  gate.forward(on.cuda, params, x, plan, saved, {.mixing = {.tau = 1e9}});
  const auto probabilities = metric::to_vector(on.cuda, std::as_const(saved.probabilities).view());
  for (std::size_t i = 5; i < probabilities.size(); ++i)
    CHECK(probabilities[i] == doctest::Approx(probabilities[i % 5]).epsilon(1e-7));
}
TEST_CASE("TokenSimilarity, learned metric: matches the naive backend") {
  expect_same_similar({.learned_metric = true});
}
TEST_CASE("TokenSimilarity, only_confident: matches the naive backend") {
  expect_same_similar({.only_confident = true});
}
TEST_CASE("AttentionPosterior: matches the naive backend") { expect_same_attentive({}); }
TEST_CASE("AttentionPosterior, float: matches the naive backend") { expect_same_attentive<float>({}); }
TEST_CASE("AttentionPosterior, one head per sequence: matches the naive backend") {
  expect_same_attentive({.head = FollowedHead::lowest_entropy_of_sequence});
}
TEST_CASE("AttentionPosterior, every head: matches the naive backend") {
  expect_same_attentive({.sigma = 0.7, .head = FollowedHead::every, .mean_of_heads = false});
}
TEST_CASE("AttentionPosterior, not causal: matches the naive backend") { expect_same_attentive({}, false); }
TEST_CASE("AttentionPosterior, only_confident: matches the naive backend") {
  expect_same_attentive({.only_confident = true});
}
TEST_CASE("mixings: sequences longer than a block match the naive backend") {
  Backends on;
  static_assert(detail_::attending::BlockSize{}.rows < 131);
  expect_same_gate<double>(on, Similar{.scores = {.experts = 3}, .mixing = {.causal = false}}, 2,
                           {.items = 131, .expected = {.scale = 20}});
  expect_same_gate<double>(on, Attentive{.scores = {.experts = 3}}, 2,
                           {.items = 131, .expected = {.scale = 20, .zeros = {"dtrace.log_sum_exp"}}});
}
