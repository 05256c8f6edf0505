#include "gatefold/optim/sgd.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/optimized.hpp"

using namespace gatefold;
using namespace optimized;

TEST_CASE_TEMPLATE("Sgd (1): several steps equal the formula", T, float, double) {
  for (const optim::Sgd sgd : {optim::Sgd{.lr = 0.1},
                               {.lr = 0.1, .decay = 0.2},
                               {.lr = 0.05, .momentum = 0.9},
                               {.lr = 0.2, .momentum = 0.5, .decay = 0.1}}) {
    Cpu::Context ctx(2);
    Pack<T> params = random_pack<T>(1);
    auto state = sgd.begin(ctx, params);
    CHECK(state.step == 0);
    std::vector<double> p = flat(params), m(p.size(), 0.0);
    for (unsigned t = 1; t <= 6; ++t) {
      Pack<T> grads = random_pack<T>(10 * t);
      const auto g = flat(grads);
      sgd.step(ctx, params, grads, state);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double moment = sgd.momentum * m[i] + g[i] + sgd.decay * p[i];
        if (sgd.momentum > 0) m[i] = moment;
        p[i] -= sgd.lr * moment;
      }
      CHECK(worst(flat(params), p) <= (sizeof(T) == 4 ? 1e-5 : 1e-14));  // float: t roundings of terms that may cancel
      CHECK(flat(grads) == g);
    }
    CHECK(state.step == 6);
    CHECK(worst(flat(state.m), m) <= (sizeof(T) == 4 ? 1e-5 : 1e-14));  // as for the parameters
  }
}

TEST_CASE("Sgd: without momentum, steps are exactly p - lr g") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> p(2), g(2);
  p(0) = 1, p(1) = -2, g(0) = 0.5, g(1) = 4;
  const optim::Sgd sgd{.lr = 0.25};
  auto state = sgd.begin(ctx, p);
  sgd.step(ctx, p, g, state);
  CHECK(p(0) == 0.875);
  CHECK(p(1) == -3);
}

TEST_CASE("Sgd: the state is a pack of named moments") {
  Cpu::Context ctx(1);
  const Pack<float> params = random_pack<float>(1);
  const auto state = optim::Sgd{}.begin(ctx, params);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, state);
  CHECK(names == std::vector<std::string>{"m.weight", "m.bias"});
  CHECK(flat(state.m) == std::vector<double>(67, 0.0));
}
