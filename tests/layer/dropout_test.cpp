#include "gatefold/layer/dropout.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const OneExpert linear{Linear{.model_dim = 4, .output_dim = 3}};
const Noise noise{Random{Seed{9}, 4}};
auto mixture() { return Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 4}}; }

struct WithNoise {
  template <class T>
  NoisyExtra<Nothing<T, Cpu>> operator()(Element<T>, Index, Index) const {
    return {noise};
  }
};

}  // namespace

TEST_CASE("Dropout (1): equals ξ ⊙ branch(x) / (1 − rate)") {
  Cpu::Context ctx(2);
  for (const double rate : {0.1, 0.5, 0.8}) {
    auto p = pass<double>(ctx, Dropout{rate, linear}, 9);
    auto branch = pass<double>(ctx, linear, 9);
    copy(ctx, p.x, branch.x.view());
    p.extra.noise = noise;
    p.forward();
    branch.forward();
    std::vector<double> expected;
    for (Index i = 0; i < p.y.size(); ++i) {
      const bool kept = uniform<double>(Seed{9}, 4, std::uint64_t(i)) >= rate;
      expected.push_back(kept ? branch.y.data()[i] / (1 - rate) : 0);
      branch.dy.data()[i] = kept ? p.dy.data()[i] / (1 - rate) : 0;
    }
    CHECK(difference(values(p.y), expected) <= 1e-15);
    p.backward();
    branch.backward();
    CHECK(difference(values(p.dx, p.grads), values(branch.dx, branch.grads)) <= 1e-14);
  }
}

TEST_CASE("Dropout: equals the branch without noise or at rate 0") {
  Cpu::Context ctx(1);
  auto branch = pass<float>(ctx, mixture(), 9);
  branch.forward();
  branch.backward();
  for (const double rate : {0.0, 0.4}) {
    auto p = pass<float>(ctx, Dropout{rate, mixture()}, 9);
    if (rate == 0) p.extra.noise = noise;
    CHECK(same_bits(values(p.params), values(branch.params)));
    p.forward();
    p.backward();
    CHECK(same_bits(values(p.y, p.dx, p.grads), values(branch.y, branch.dx, branch.grads)));
    p.infer();
    CHECK(same_bits(values(p.y), values(branch.y)));
  }
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, branch.params);
  auto p = pass<float>(ctx, Dropout{0.4, mixture()}, 9);
  for_each_tensor([&, i = 0u](const Name& name, const auto&) mutable { CHECK(name.str() == names[i++]); }, p.params);
}

TEST_CASE("Dropout: the update rule's step runs after the dropout") {
  Cpu::Context ctx(1);
  const Dropout dropout{0.5, OneExpert{Linear{.model_dim = 4}}};
  for (const Noise& given : {noise, Noise{}}) {
    auto p = pass<double>(ctx, dropout, 9);
    const NoisyExtra<Nothing<double, Cpu>> extra{given};
    Tensor<double, 2, Cpu> u(9, 4), stepped(9, 4), inferred(9, 4);
    dropout.forward(ctx, p.params.branch, p.x, u, p.saved.branch, extra);
    add(ctx, p.x, u.view());
    const auto add_x = [&](Tensor<double, 2, Cpu>& to) { return functor::AddScaled<double>{1, p.x.data(), to.data()}; };
    dropout.forward(ctx, p.params.branch, p.x, stepped, p.saved.branch, extra, add_x(stepped));
    dropout.infer(ctx, p.params.branch, p.x, inferred, extra, add_x(inferred));
    CHECK(same_bits(values(u), values(stepped)));
    CHECK(same_bits(values(u), values(inferred)));
  }
}

TEST_CASE("Dropout: each layer and position draws its own numbers") {
  Cpu::Context ctx(1);
  const Residual layer{update::Plain{}, Dropout{0.5, OneExpert{Linear{.model_dim = 4}}}};
  auto both = pass<double>(ctx, Stack{layer, 2}, 6);
  both.extra.noise = noise;
  both.forward();
  auto x = pass<double>(ctx, layer, 6);
  copy(ctx, both.x, x.x.view());
  for (const Index l : {0, 1}) {
    copy_pack(ctx, both.params.layers[std::size_t(l)], x.params);
    x.extra.noise = noise.at(l);
    x.forward();
    copy(ctx, x.y, x.x.view());
  }
  CHECK(same_bits(values(both.y), values(x.y)));
}

TEST_CASE("Dropout: a rule that evaluates twice drops the same values") {
  Cpu::Context ctx(1);
  const auto report = check::gradients(
      ctx, Residual{update::SharpnessAware{.rho = 0.2}, Dropout{0.4, OneExpert{Linear{.model_dim = 4}}}}, {},
      {noise, {}});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Dropout: gradients and conformance, with and without noise") {
  const auto with = check::conformance<Cpu, double>(Dropout{0.4, linear}, {}, WithNoise{});
  CHECK_MESSAGE(with, with.str());
  const auto without = check::conformance<Cpu, double>(Dropout{0.4, mixture()}, {.items_are_independent = true});
  CHECK_MESSAGE(without, without.str());
}

TEST_CASE("Dropout: passes the attention trace to the branch's gate") {
  Cpu::Context ctx(1);
  const auto gate = AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}};
  const Residual attention{update::Plain{}, Attention{.model_dim = 4, .heads = 2}};
  const Mixture mixture{gate, Linear{.model_dim = 4}};
  const Block block{attention, Residual{update::HeavyBall{}, Dropout{0.4, mixture}}};
  Extra<decltype(block), double, Cpu> extra{};
  extra.layer.noise = noise;
  const auto report = check::gradients(ctx, block, {}, extra);
  CHECK_MESSAGE(report, report.str());
  // Extra inputs without a trace keep their type.
  using Plain = Extra<Dropout<OneExpert<Linear>>, double, Cpu>;
  CHECK(std::is_same_v<WithoutTrace<Plain>, Plain>);
}

TEST_CASE("Dropout: wrong rates or shapes throw before any write") {
  Cpu::Context ctx(1);
  for (const double rate : {-0.1, 1.0, quiet_nan}) {
    auto p = pass<float>(ctx, Dropout{0.5, linear}, 9);
    p.layer.branch.rate = rate;
    const auto message = message_of([&] { p.forward(); });
    CHECK(message.starts_with("Dropout: rate: expected 0 <= rate < 1, got "));
    CHECK(p.untouched());
  }
  auto p = pass<float>(ctx, Dropout{0.5, linear}, 9);
  p.x.resize(9, 5);
  CHECK(message_of([&] { p.forward(); }) == "Dropout.forward: x: expected [?, 4], got [9, 5]");
}
