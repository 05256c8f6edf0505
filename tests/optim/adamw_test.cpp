#include "gatefold/optim/adamw.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/optimized.hpp"

using namespace gatefold;
using namespace optimized;

TEST_CASE_TEMPLATE("AdamW (1): several steps equal the formula", T, float, double) {
  for (const optim::AdamW adam : {optim::AdamW{.lr = 0.01},
                                  {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
                                  {.lr = 0.05, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .decay = 0.1}}) {
    Cpu::Context ctx(2);
    Pack<T> params = random_pack<T>(1);
    auto state = adam.begin(ctx, params);
    std::vector<double> p = flat(params), m(p.size(), 0.0), v(p.size(), 0.0);
    for (unsigned t = 1; t <= 8; ++t) {
      Pack<T> grads = random_pack<T>(10 * t);
      const auto g = flat(grads);
      adam.step(ctx, params, grads, state);
      for (std::size_t i = 0; i < p.size(); ++i) {
        m[i] = adam.beta1 * m[i] + (1 - adam.beta1) * g[i];
        v[i] = adam.beta2 * v[i] + (1 - adam.beta2) * g[i] * g[i];
        const double unbiased_m = m[i] / (1 - std::pow(adam.beta1, t)),
                     unbiased_v = v[i] / (1 - std::pow(adam.beta2, t));
        p[i] = p[i] - adam.lr * (unbiased_m / (std::sqrt(unbiased_v) + adam.epsilon) + adam.decay * p[i]);
      }
      CHECK(worst(flat(params), p) <= (sizeof(T) == 4 ? 2e-5 : 1e-13));  // float: steps divide roundings by √v + ε
      CHECK(flat(grads) == g);
    }
    CHECK(state.step == 8);
    CHECK(worst(flat(state.m), m) <= (sizeof(T) == 4 ? 1e-6 : 1e-14));
    CHECK(worst(flat(state.v), v) <= (sizeof(T) == 4 ? 1e-6 : 1e-14));
  }
}

// torch.optim.AdamW decays first, p <- p (1 - lr wd), and then steps by lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps).
// By hand for lr = 0.1, betas = (0.9, 0.99), eps = 0, weight_decay = 0.5, p = 1, gradients 2 and then -1:
//   step 1: p = 1 (1 - 0.05) = 0.95;    m = 0.2,   v = 0.04;    m/0.1 = 2, v/0.01 = 4:  p = 0.95 - 0.1 * 2/2 = 0.85
//   step 2: p = 0.85 * 0.95 = 0.8075;   m = 0.08,  v = 0.0496;  m/0.19 = 8/19, v/0.0199 = 496/199:
//           p = 0.8075 - 0.1 * (8/19) / sqrt(496/199)
TEST_CASE_TEMPLATE("AdamW: two steps equal hand calculation of torch.optim.AdamW", T, float, double) {
  Cpu::Context ctx(1);
  const optim::AdamW adam{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 0, .decay = 0.5};
  Tensor<T, 1, Cpu> p(1), g(1);
  p(0) = 1, g(0) = 2;
  auto state = adam.begin(ctx, p);
  adam.step(ctx, p, g, state);
  const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-14;
  CHECK(p(0) == doctest::Approx(0.85).epsilon(epsilon));
  g(0) = -1;
  adam.step(ctx, p, g, state);
  CHECK(p(0) == doctest::Approx(0.8075 - 0.1 * (8.0 / 19) / std::sqrt(496.0 / 199)).epsilon(epsilon));
}

TEST_CASE("AdamW: epsilon is outside the root") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> p(1), g(1);
  p(0) = 0, g(0) = 3;
  const optim::AdamW adam{.lr = 1, .beta1 = 0, .beta2 = 0, .epsilon = 1};
  auto state = adam.begin(ctx, p);
  adam.step(ctx, p, g, state);
  CHECK(p(0) == -3.0 / (3 + 1));
}

TEST_CASE("AdamW: the first step is lr sign(g), or 0") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> p(4), g(4);
  for (Index i = 0; i < 4; ++i) p(i) = 1;
  g(0) = 1e-3, g(1) = -1e3, g(2) = 1e-150, g(3) = 0;
  const optim::AdamW adam{.lr = 0.25, .epsilon = 1e-300};
  auto state = adam.begin(ctx, p);
  adam.step(ctx, p, g, state);
  CHECK(p(0) == doctest::Approx(0.75).epsilon(1e-12));
  CHECK(p(1) == doctest::Approx(1.25).epsilon(1e-12));
  CHECK(p(2) == doctest::Approx(0.75).epsilon(1e-12));
  CHECK(p(3) == 1);
}

// m̂ and v̂ are g and g², whatever β is, so every step is lr · sign g.
TEST_CASE_TEMPLATE("AdamW: constant gradients give steps of lr for any β", T, float, double) {
  Cpu::Context ctx(1);
  for (const double beta : {0.9, 0.999, 0.9999, 0.99999, 0.9999999, 1 - 1e-8}) {
    const optim::AdamW adam{.lr = 1, .beta1 = beta, .beta2 = beta, .epsilon = 0};
    Tensor<T, 1, Cpu> p(1), g(1);
    auto state = adam.begin(ctx, p);
    for (int t = 1; t <= 100; ++t) {
      p(0) = 0, g(0) = T(0.37);
      adam.step(ctx, p, g, state);
      const double rounded = 4 + t;  // units in the last place: each step rounds a moment
      CHECK(std::abs(static_cast<double>(p(0)) + 1) <= rounded * std::numeric_limits<T>::epsilon());
    }
  }
}

TEST_CASE("AdamW: the state is a pack of named moments") {
  Cpu::Context ctx(1);
  const Pack<float> params = random_pack<float>(1);
  const auto state = optim::AdamW{}.begin(ctx, params);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, state);
  CHECK(names == std::vector<std::string>{"m.weight", "m.bias", "v.weight", "v.bias"});
  CHECK(state.step == 0);
}
