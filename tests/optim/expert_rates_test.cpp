#include "gatefold/optim/expert_rates.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/optimizer_steps.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/averaged.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 5, experts = 4;
const Mixture mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};
const Stack layers{Residual{update::Plain{}, mixture}, 2};
const optim::AdamW adam{.lr = 0.02, .decay = 0.1};
const optim::Sgd sgd{.lr = 0.3, .momentum = 0.9, .decay = 0.01};

/// Returns the factor of expert e. The two middle experts have the same factor. The second layer has the factors in
/// reverse order.
double factor_of(const Name& name, Index e) {
  const double factors[]{0.25, 3, 3, 0};
  return name.str().starts_with("layers.1") ? factors[3 - e] : factors[e];
}
double one(const Name&, Index) { return 1; }

template <class T, class O, class L>
auto trained(Cpu::Context& ctx, const O& optimizer, const L& model, int steps) {
  Trainer run{ctx, model, MeanSquaredError{}, optimizer, Seed{3}, Element<T>{}};
  for (int t = 0; t < steps; ++t) {
    const auto x = uniform_tensor<T>(ctx, Seed{7}.fork(static_cast<std::uint64_t>(t)), 1, 11, dim);
    const auto target = uniform_tensor<T>(ctx, Seed{8}.fork(static_cast<std::uint64_t>(t)), 1, 11, dim);
    run.step(x, target);
  }
  return run;
}

}  // namespace

TEST_CASE_TEMPLATE("ExpertRates (1): row e equals an optimizer at e's rate", T, float, double) {
  const auto check = [&](const auto& optimizer) {
    Cpu::Context ctx(2);
    auto run = trained<T>(ctx, optimizer, layers, 1);  // with moments that are not 0
    const auto step_twice = [&](const auto& stepped) {
      auto params = zeros_like(ctx, run.params), grads = zeros_like(ctx, run.params);
      copy_pack(ctx, run.params, params);
      copy_pack(ctx, run.grads, grads);
      auto state = stepped.begin(ctx, params);
      for (int t = 0; t < 2; ++t) stepped.step(ctx, params, grads, state);
      return std::pair{std::move(params), values(state)};
    };
    const auto [found, moments] = step_twice(optim::ExpertRates{optimizer, factor_of});
    const auto [plain, plain_moments] = step_twice(optimizer);
    // Rows with a factor must equal the same rows after steps of the plain optimizer at the rate lr · factor.
    for (const double factor : {0.25, 3.0, 0.0, 1.0}) {
      const auto at_rate = step_twice(optim::with_rate(optimizer, optimizer.lr * factor)).first;
      for_each_tensor(
          [&](const Name& name, const auto& t, const auto& expected, const auto& before) {
            const bool of_expert = name.str().find(".expert.") != std::string::npos;
            for (Index i = 0; i < t.size(); ++i) {
              const Index e = i / (t.size() / t.extent(0));
              if ((of_expert ? factor_of(name, e) : 1.0) != factor) continue;
              CHECK(t.data()[i] == expected.data()[i]);
              if (factor == 0) CHECK(t.data()[i] == before.data()[i]);
            }
          },
          found, at_rate, std::as_const(run.params));
    }
    if (optimizer.decay == 0) CHECK(same_bits(moments, plain_moments));
    CHECK_FALSE(same_bits(values(found), values(plain)));
  };
  check(adam);
  check(optim::AdamW{.lr = 0.02});
  check(sgd);
  check(optim::Sgd{.lr = 0.1});
}

TEST_CASE_TEMPLATE("ExpertRates: factors of 1 change no bit", T, float, double) {
  Cpu::Context ctx(3);
  const auto check = [&](const auto& around) {
    const auto plain = trained<T>(ctx, around(adam), layers, 4);
    const auto found = trained<T>(ctx, around(optim::ExpertRates{adam, one}), layers, 4);
    CHECK(same_bits(values(plain.params), values(found.params)));
    CHECK(same_bits(values(plain.state), values(found.state)));
  };
  check([](const auto& o) { return o; });
  check([](const auto& o) { return optim::Scheduled{optim::Clipped{o, 0.1}, optim::Warmup{3}}; });
  check([](const auto& o) { return optim::Averaged{o, 0.9}; });
  check([](const auto& o) {
    return InGroups{[](const Name& name) { return name.part == "up" || name.part == "down"; }, o, sgd};
  });
}

TEST_CASE("ExpertRates: a lambda may capture; each step calls it") {
  Cpu::Context ctx(1);
  std::vector<double> rates(experts, 1);
  const auto factor = [&rates](const Name&, Index e) { return rates[static_cast<std::size_t>(e)]; };
  auto run = trained<double>(ctx, optim::Scheduled{optim::ExpertRates{adam, factor}, optim::Warmup{2}}, layers, 1);
  auto before = zeros_like(ctx, run.params);
  copy_pack(ctx, run.params, before);
  rates[1] = 0;
  const auto x = uniform_tensor<double>(ctx, Seed{17}, 1, 40, dim),
             target = uniform_tensor<double>(ctx, Seed{18}, 1, 40, dim);
  run.step(x, target);
  for_each_tensor(
      [&](const Name& name, const auto& now, const auto& then) {
        if (name.str().find(".expert.up") == std::string::npos) return;
        const Index slice = now.size() / experts;
        for (Index e = 0; e < experts; ++e) CHECK((now.data()[e * slice] == then.data()[e * slice]) == (e == 1));
      },
      run.params, before);
}

TEST_CASE("ExpertRates: gates and shared experts keep the rate") {
  Cpu::Context ctx(1);
  const Residual model{update::Plain{},
                       WithShared{mixture, SigmoidGated{Mlp<Gelu>{.model_dim = dim, .hidden_dim = 4}}}};
  const auto plain = trained<double>(ctx, adam, model, 1);
  const auto found = trained<double>(ctx, optim::ExpertRates{adam, [](const Name&, Index) { return 0.5; }}, model, 1);
  int same = 0, others = 0;
  for_each_tensor(
      [&](const Name& name, const auto& a, const auto& b) {
        if (a.size() == 0) return;
        const bool of_mixture = name.str().starts_with("branch.branch.expert.");
        CHECK(same_bits(values(a), values(b)) == !of_mixture);
        (of_mixture ? others : same) += 1;
      },
      plain.params, found.params);
  CHECK(others == 4);
  CHECK(same >= 5);
}

TEST_CASE("ExpertRates: wrong factors and models are refused") {
  Cpu::Context ctx(1);
  const auto refuses = [&](double (*factor)(const Name&, Index), const std::string& got) {
    CHECK(message_of([&] {
            trained<float>(ctx, optim::ExpertRates{adam, factor}, layers, 0);
          }) ==
          "ExpertRates: factor of layers.0.branch.expert.up, expert 2: expected a finite number, at least 0, got " +
              got);
  };
  refuses([](const Name&, Index e) { return e == 2 ? -1.0 : 1.0; }, "-1");
  refuses([](const Name&, Index e) { return e == 2 ? std::numeric_limits<double>::infinity() : 1.0; }, "inf");
  refuses([](const Name&, Index e) { return e == 2 ? std::nan("") : 1.0; }, "nan");
  Tensor<float, 1, Cpu> none(3);
  CHECK(message_of([&] {
          optim::ExpertRates{adam, one}.begin(ctx, none);
        }) == "ExpertRates.begin: params: expected tensors of experts, below a part named `expert`, got none");
  // If the factor of a later tensor is invalid, the step changes no tensor.
  double last = 1;
  const auto factor = [&last](const Name& name, Index) { return name.str().starts_with("layers.1") ? last : 1; };
  auto run = trained<float>(ctx, optim::ExpertRates{adam, factor}, layers, 1);
  const auto params = values(run.params), state = values(run.state);
  last = -1;
  const auto x = uniform_tensor<float>(ctx, Seed{17}, 1, 4, dim);
  CHECK(message_of([&] { run.step(x, x); }).starts_with("ExpertRates: factor of layers.1."));
  CHECK(same_bits(values(run.params), params));
  CHECK(same_bits(values(run.state), state));
  CHECK(run.state.step == 1);
}

TEST_CASE("ExpertRates: passes check::optimizer_steps") {
  const auto factor = [](const Name&, Index e) { return 0.5 * static_cast<double>(e); };
  CHECK(check::optimizer_steps<Cpu>(optim::ExpertRates{adam, factor}, mixture).empty());
  CHECK(check::optimizer_steps<Cpu>(optim::Clipped{optim::ExpertRates{sgd, factor}, 0.1}, mixture).empty());
}
