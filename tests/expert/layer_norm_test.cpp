#include "gatefold/expert/layer_norm.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "support/experts.hpp"
#include "support/naive_moe.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"
#include "support/reserved.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("LayerNorm (1): equals a plain loop, variance divided by D") {
  Cpu::Context ctx(2);
  for (const Index dim : {2, 3, 16, 33})
    for (const double epsilon : {1e-5, 0.5}) {
      auto p = pass<double>(ctx, OneExpert{LayerNorm{.model_dim = dim, .epsilon = epsilon}}, 9);
      fill_uniform(ctx, Seed{5}, -2, 2, p.params.branch.expert.gain);
      fill_uniform(ctx, Seed{6}, -2, 2, p.params.branch.expert.bias);
      p.forward();
      std::vector<double> expected;
      for (Index n = 0; n < 9; ++n) {
        const auto x = naive::row(p.x, n);
        double mean = 0, variance = 0;
        for (const double v : x) mean += v / double(dim);
        for (const double v : x) variance += (v - mean) * (v - mean) / double(dim);
        for (Index d = 0; d < dim; ++d)
          expected.push_back((x[std::size_t(d)] - mean) / std::sqrt(variance + epsilon) *
                                 p.params.branch.expert.gain(0, d) +
                             p.params.branch.expert.bias(0, d));
      }
      CHECK(difference(values(p.y), expected) <= 1e-13);
    }
}

TEST_CASE("LayerNorm: starts as gain 1 and bias 0") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, OneExpert{LayerNorm{.model_dim = 4}}, 1);
  std::vector<double> expected(4, 1);  // no initializer list, because g++ 12.2 with AVX-512 fills it with ones only
  expected.resize(8);
  CHECK(values(p.params) == expected);
  fill(ctx, p.x.view(), 3);
  fill(ctx, p.params.branch.expert.bias.view(), 7);
  p.forward();
  CHECK(values(p.y) == std::vector<double>(4, 7));
}

TEST_CASE("LayerNorm: an item far from zero loses no precision") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, OneExpert{LayerNorm{.model_dim = 4, .epsilon = 1e-12}}, 1);
  for (Index d = 0; d < 4; ++d) p.x(0, d) = 65536 + float(d % 2);
  p.forward();
  CHECK(values(p.y) == std::vector<double>{-1, 1, -1, 1});
}

TEST_CASE("LayerNorm: gradients and conformance") {
  for (const Index dim : {2, 5, 16}) {
    const auto report = check::conformance<Cpu, double>(
        LayerNorm{.model_dim = dim}, {.gradients = {.step = 1e-5, .of_largest = 1e-8}, .items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
  // If D = 1, x - mean is 0, so the gradients of x and gain are 0.
  const auto one = check::conformance<Cpu, double>(LayerNorm{.model_dim = 1}, {.gradients = {.zero = {"x", "gain"}}});
  CHECK_MESSAGE(one, one.str());
}

TEST_CASE("LayerNorm: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)LayerNorm{}.init<float, Cpu>(ctx, 1, {}); }) ==
        "LayerNorm.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)LayerNorm{.model_dim = 2, .epsilon = 0}.init<float, Cpu>(ctx, 1, {}); }) ==
        "LayerNorm.init: epsilon: expected more than 0, got 0");
  CHECK(LayerNorm{.epsilon = 0.25}.with_model_dim(6).epsilon == 0.25);
  CHECK(message_of([] { (void)LayerNorm{.model_dim = 5}.with_model_dim(6); }) ==
        "LayerNorm: model_dim: expected 6 (the width of the branch), got 5");
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, OneExpert{LayerNorm{.model_dim = 6}}, 10);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.normalized.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.layer.branch.expert.epsilon = -1; }) ==
        "LayerNorm: epsilon: expected more than 0, got -1");
  CHECK(message([](auto& p) { p.x.resize(10, 5); }) == "OneExpert.forward: x: expected [?, 6], got [10, 5]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 9, 6); }) ==
        "OneExpert.forward: u: expected [10, 6], got [9, 6]");
  CHECK(message([](auto& p) { p.params.branch.expert.gain.resize(1, 5); }) ==
        "LayerNorm: params.gain: expected [1, 6], got [1, 5]");
  CHECK(message([](auto& p) { p.params.branch.expert.bias.resize(1, 0); }) ==
        "LayerNorm: params.bias: expected [1, 6], got [1, 0]");
}

TEST_CASE("LayerNorm: sizes have 64 bits: item 2^31 + 1 works") {
  const Index items = (Index(1) << 31) + 2, n = items - 1;
  const Reserved<float> x(2 * items), unit(2 * items), y(2 * items), inverse(items);
  CHECK(sizeof(Index) == 8);
  if (!x.data() || !unit.data() || !y.data() || !inverse.data()) {
    MESSAGE("skipped: the system gives no addresses");
    return;
  }
  const std::vector<float> gain{1, 1}, bias{0, 0};
  const std::vector<Index> offsets{0, items};
  x.data()[2 * n] = 4;
  x.data()[2 * n + 1] = 8;
  const functor::Normalise<float, Cpu> normalise{{offsets, {}, items},
                                                 View<const float, 2, Cpu>(x.data(), items, 2),
                                                 View<const float, 2, Cpu>(gain.data(), 1, 2),
                                                 View<const float, 2, Cpu>(bias.data(), 1, 2),
                                                 0.f,
                                                 View<float, 2, Cpu>(unit.data(), items, 2),
                                                 View<float, 2, Cpu>(y.data(), items, 2),
                                                 View<float, 1, Cpu>(inverse.data(), items)};
  normalise(OneLane{}, n);
  CHECK(y.data()[2 * n] == -1);
  CHECK(y.data()[2 * n + 1] == 1);
  CHECK(inverse.data()[n] == 0.5f);
}

TEST_CASE("LayerNorm (1): each expert has its own gain and bias") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, LayerNorm> b(ctx, {.model_dim = 5, .epsilon = 0.1}, counts, 6);
    fill_uniform(ctx, Seed{5}, -1, 1, b.params.gain);
    fill_uniform(ctx, Seed{6}, -1, 1, b.params.bias);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
            double mean = 0, variance = 0;
            for (const double v : x) mean += v / 5;
            for (const double v : x) variance += (v - mean) * (v - mean) / 5;
            std::vector<double> z;
            for (Index j = 0; j < 5; ++j)
              z.push_back((x[std::size_t(j)] - mean) / std::sqrt(variance + 0.1) * b.params.gain(e, j) +
                          b.params.bias(e, j));
            return z;
          })) <= 1e-14);
    Tensor<double, 2, Cpu> z(b.z.extent(0), 5);
    b.expert.recompute(ctx, b.params, b.groups(), b.saved, z);
    CHECK(same_bits(values(z), values(b.z)));
  }
}

TEST_CASE("LayerNorm: as an expert it leaves unused slots untouched") {
  const auto broken = broken_promises<double>(LayerNorm{.model_dim = 5}, [](auto& bank) {
    bank.poison(bank.saved.normalized);
    for (Index i = bank.used(); i < bank.saved.inverse.size(); ++i) bank.saved.inverse.data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, OneExpert{LayerNorm{.model_dim = 5}});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("LayerNorm: as an expert, slots may start anywhere") {
  const auto broken = broken_for_later_slots<double>(LayerNorm{.model_dim = 5});
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("LayerNorm: as an expert it starts as plain normalisation") {
  Cpu::Context ctx(1);
  auto p = LayerNorm{.model_dim = 2}.init<double, Cpu>(ctx, 3, {});
  CHECK(values(p.gain) == std::vector<double>(6, 1.0));
  CHECK(values(p.bias) == std::vector<double>(6, 0.0));
  CHECK(message_of([&] { (void)LayerNorm{}.init<double, Cpu>(ctx, 1, {}); }) ==
        "LayerNorm.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)LayerNorm{.model_dim = 2, .epsilon = 0}.init<double, Cpu>(ctx, 1, {}); }) ==
        "LayerNorm.init: epsilon: expected more than 0, got 0");
  CHECK(message_of([&] { LayerNorm{.model_dim = 2, .epsilon = quiet_nan}.validate(p, 3); }) ==
        "LayerNorm: epsilon: expected more than 0, got nan");
  CHECK(message_of([&] { LayerNorm{.model_dim = 2}.validate(p, 4); }) ==
        "LayerNorm: params.gain: expected [4, 2], got [3, 2]");
}

TEST_CASE("LayerNorm: the branch equals one expert; backward adds to gradients") {
  Cpu::Context ctx(2);
  const LayerNorm norm{.model_dim = 9};
  auto branch = pass<float>(ctx, norm, 7);
  auto expert = pass<float>(ctx, OneExpert{norm}, 7);
  for (auto* t : {&branch.params.branch.expert.gain, &expert.params.branch.expert.gain})
    fill_uniform(ctx, Seed{5}, -2, 2, *t);
  branch.forward();
  expert.forward();
  CHECK(same_bits(values(branch.y), values(expert.y)));
  fill(ctx, branch.dx.view(), 0);
  fill(ctx, expert.dx.view(), 0);
  branch.backward();
  expert.backward();
  CHECK(same_bits(values(branch.dx, branch.grads), values(expert.dx, expert.grads)));
  const auto once = values(branch.dx);
  branch.backward();
  auto twice = values(branch.dx);
  for (double& v : twice) v /= 2;
  CHECK(difference(twice, once) <= 1e-6);
}
