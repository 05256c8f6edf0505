#include "gatefold/layer/layer_norm.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"
#include "support/reserved.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("LayerNorm (1): equals loops; the variance divides by D") {
  Cpu::Context ctx(2);
  for (const Index dim : {2, 3, 16, 33})
    for (const double epsilon : {1e-5, 0.5}) {
      auto p = pass<double>(ctx, LayerNorm{.model_dim = dim, .epsilon = epsilon}, 9);
      fill_uniform(ctx, Seed{5}, -2, 2, p.params.branch.gain);
      fill_uniform(ctx, Seed{6}, -2, 2, p.params.branch.bias);
      p.forward();
      std::vector<double> expected;
      for (Index n = 0; n < 9; ++n) {
        const auto x = naive::row(p.x, n);
        double mean = 0, variance = 0;
        for (const double v : x) mean += v / double(dim);
        for (const double v : x) variance += (v - mean) * (v - mean) / double(dim);
        for (Index d = 0; d < dim; ++d)
          expected.push_back((x[std::size_t(d)] - mean) / std::sqrt(variance + epsilon) * p.params.branch.gain(d) +
                             p.params.branch.bias(d));
      }
      CHECK(difference(values(p.y), expected) <= 1e-13);
    }
}

TEST_CASE("LayerNorm: starts as gain 1 and bias 0; a constant item gives the bias") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, LayerNorm{.model_dim = 4}, 1);
  CHECK(values(p.params) == std::vector<double>{1, 1, 1, 1, 0, 0, 0, 0});
  fill(ctx, p.x.view(), 3);
  fill(ctx, p.params.branch.bias.view(), 7);
  p.forward();
  CHECK(values(p.y) == std::vector<double>(4, 7));
}

TEST_CASE("LayerNorm: an item far from zero keeps its shape") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, LayerNorm{.model_dim = 4, .epsilon = 1e-12}, 1);
  for (Index d = 0; d < 4; ++d) p.x(0, d) = 65536 + float(d % 2);
  p.forward();
  CHECK(values(p.y) == std::vector<double>{-1, 1, -1, 1});
}

TEST_CASE("LayerNorm: gradients and promises") {
  for (const Index dim : {2, 5, 16}) {
    const auto report = check::conformance<Cpu>(
        LayerNorm{.model_dim = dim}, {.gradients = {.step = 1e-5, .of_largest = 1e-8}, .items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
  // One number is its own mean.
  const auto one = check::conformance<Cpu>(LayerNorm{.model_dim = 1}, {.gradients = {.zero = {"x", "gain"}}});
  CHECK_MESSAGE(one, one.str());
}

TEST_CASE("LayerNorm: options and shapes that do not fit say so before anything is written") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)LayerNorm{}.init<float, Cpu>(ctx, {}); }) ==
        "LayerNorm.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)LayerNorm{.model_dim = 2, .epsilon = 0}.init<float, Cpu>(ctx, {}); }) ==
        "LayerNorm.init: epsilon: expected more than 0, got 0");
  CHECK(LayerNorm{.epsilon = 0.25}.with_model_dim(6).epsilon == 0.25);
  CHECK(message_of([] { (void)LayerNorm{.model_dim = 5}.with_model_dim(6); }) ==
        "LayerNorm: model_dim: expected 6 (the branch's), got 5");
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, LayerNorm{.model_dim = 6}, 10);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.unit.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.layer.branch.epsilon = -1; }) == "LayerNorm: epsilon: expected more than 0, got -1");
  CHECK(message([](auto& p) { p.x.resize(10, 5); }) == "LayerNorm.forward: x: expected [?, 6], got [10, 5]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 9, 6); }) ==
        "LayerNorm.forward: y: expected [10, 6], got [9, 6]");
  CHECK(message([](auto& p) { p.params.branch.gain.resize(5); }) == "LayerNorm: params.gain: expected [6], got [5]");
  CHECK(message([](auto& p) { p.params.branch.bias.resize(0); }) == "LayerNorm: params.bias: expected [6], got [0]");
}

TEST_CASE("LayerNorm: item 2^31 + 1 is normalised where it stands: sizes are 64 bits") {
  const Index items = (Index(1) << 31) + 2, n = items - 1;
  const Reserved<float> x(2 * items), unit(2 * items), y(2 * items), inverse(items);
  CHECK(sizeof(Index) == 8);
  if (!x.data() || !unit.data() || !y.data() || !inverse.data()) {
    MESSAGE("skipped: the system gives no addresses");
    return;
  }
  std::vector<float> gain{1, 1}, bias{0, 0};
  x.data()[2 * n] = 4;
  x.data()[2 * n + 1] = 8;
  const fn::Normalise<float, Cpu> normalise{View<const float, 2, Cpu>(x.data(), items, 2),
                                            gain,
                                            bias,
                                            0.f,
                                            View<float, 2, Cpu>(unit.data(), items, 2),
                                            View<float, 2, Cpu>(y.data(), items, 2),
                                            View<float, 1, Cpu>(inverse.data(), items)};
  normalise(OneLane{}, n);
  CHECK(y.data()[2 * n] == -1);
  CHECK(y.data()[2 * n + 1] == 1);
  CHECK(inverse.data()[n] == 0.5f);
}
