// All experts of a mixture on the device, with uneven slots, experts without slots, and slots that belong to no expert.

#include <doctest/doctest.h>

#include <tuple>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/parity_layers.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

const Slots uneven{{3, 0, 5, 1}}, with_spare{{0, 4, 2}, 3}, one_takes_all{{0, 70, 0}};

template <class T, class E>
void check(const E& expert, const Expected& expected = {}, bool saved_is_whole = true) {
  for (const Slots& slots : {uneven, with_spare}) {
    Backends on;
    CAPTURE(slots.counts.size());
    expect_same_bank<T>(on, expert, slots, expected, saved_is_whole);
  }
}

template <class T>
void check_two_kinds() {
  const Experts mixed{std::tuple{Mlp<Gelu>{7, 13}, Linear{.model_dim = 7}}, {1, 3}};
  Backends on;
  expect_same_bank<T>(on, mixed, uneven, {}, false);  // each kind of expert fills only its part of the saved values
  expect_same_bank<T>(on, mixed, {{2, 0, 0, 6}, 2}, {}, false);
}

/// More experts than a warp has lanes, most of them without a slot.
Slots many_experts() {
  Slots slots{std::vector<Index>(40, 0), 1};
  for (const std::size_t e : {0, 1, 31, 33, 39}) slots.counts[e] = static_cast<Index>(1 + e % 3);
  return slots;
}

}  // namespace

// GATEFOLD_SLOW_TESTS adds cases that the descriptor rows in tests/descriptors also cover.
TEST_CASE_TEMPLATE("cuda: experts match the naive backend", T, double, float) {
  SUBCASE("Linear") { check<T>(Linear{.model_dim = 37, .output_dim = 11}); }
  SUBCASE("Mlp, GELU") { check<T>(Mlp<Gelu>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("GatedMlp, SiLU") { check<T>(GatedMlp<Silu>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("LayerNorm") { check<T>(LayerNorm{.model_dim = 37}); }
}

TEST_CASE("cuda: experts with options match the naive backend") {
  SUBCASE("Linear without bias") { check<double>(Linear{.model_dim = 8, .output_dim = 5, .bias = false}); }
  SUBCASE("Mlp without bias") { check<double>(Mlp<Gelu>{.model_dim = 7, .hidden_dim = 13, .bias = false}); }
  SUBCASE("GatedMlp with biases, of gpt-oss") {
    check<double>(GatedMlp<ClampedSilu, ClampedPlusOne>{
        .model_dim = 7, .hidden_dim = 13, .initial = Initial::normal(3), .bias = true});
  }
  SUBCASE("ConstantExpert") { check<double>(ConstantExpert{.model_dim = 37}); }
  SUBCASE("ConstantExpert, float") { check<float>(ConstantExpert{.model_dim = 37}); }
  SUBCASE("experts without products") {
    const Experts mixed{std::tuple{ZeroExpert{37}, CopyExpert{37}, ConstantExpert{37}}, {1, 1, 2}};
    Backends on;
    expect_same_bank<double>(on, mixed, uneven, {}, false);
  }
  SUBCASE("Experts of two kinds") { check_two_kinds<double>(); }
}

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE_TEMPLATE("cuda: experts of every activation match the naive backend", T, double, float) {
  SUBCASE("identity") { check<T>(Mlp<Identity>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("ReLU") { check<T>(Mlp<Relu>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("tanh GELU") { check<T>(Mlp<GeluTanh>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("SiLU") { check<T>(Mlp<Silu>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("squared ReLU") { check<T>(Mlp<Relu2>{.model_dim = 7, .hidden_dim = 13}); }
  SUBCASE("cubic") { check<T>(Mlp<Cubic>{.model_dim = 7, .hidden_dim = 13}); }
}
TEST_CASE("cuda: experts of two kinds match the naive backend, float") { check_two_kinds<float>(); }
#endif

TEST_CASE("cuda: experts: uneven slots and many experts match naive backend") {
  for (const Slots& slots : {one_takes_all, many_experts()}) {
    Backends on;
    CAPTURE(slots.counts.size());
    expect_same_bank<double>(on, Mlp<Gelu>{.model_dim = 7, .hidden_dim = 13}, slots);
    expect_same_bank<double>(on, GatedMlp<Silu>{.model_dim = 7, .hidden_dim = 13}, slots);
    expect_same_bank<double>(on, LayerNorm{.model_dim = 37}, slots);
  }
}

TEST_CASE("cuda: experts without slots write no output") {
  for (const Slots& slots : {Slots{{0, 0, 0}, 4}, Slots{{0, 0, 0}, 0}}) {
    CAPTURE(slots.spare);
    Backends on;
    expect_same_bank<double>(on, Mlp<Gelu>{.model_dim = 7, .hidden_dim = 13}, slots);
    expect_same_bank<double>(on, LayerNorm{.model_dim = 7}, slots);
  }
}
