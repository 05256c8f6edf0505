#include "gatefold/layer/relative_keys.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const RelativeAttention attention{.model_dim = 4, .heads = 2, .window = 3};
auto layer() {
  return Chain{Residual{update::Plain{}, PreNorm{RmsNorm{}, Dropout{0.2, attention}}},
               Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = 4}}}};
}

}  // namespace

TEST_CASE("RelativeKeys (1): layers share one tensor and sum its gradients") {
  Cpu::Context ctx(1);
  auto shared = pass<double>(ctx, RelativeKeys{3, 2, Stack{layer(), 2}}, 6);
  auto own = pass<double>(ctx, Stack{RelativeKeys{3, 2, layer()}, 2}, 6);
  for (std::size_t l = 0; l < 2; ++l) {
    copy(ctx, shared.params.relative.view(), own.params.layers[l].relative.view());
    copy_pack(ctx, shared.params.layer.layers[l], own.params.layers[l].layer);
  }
  copy(ctx, shared.x, own.x.view());
  copy(ctx, shared.dy, own.dy.view());
  shared.forward();
  own.forward();
  CHECK(same_bits(values(shared.y), values(own.y)));
  shared.backward();
  own.backward();
  CHECK(same_bits(values(shared.dx), values(own.dx)));
  auto sum = values(own.grads.layers[0].relative);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own.grads.layers[1].relative.data()[i];
  CHECK(difference(values(shared.grads.relative), sum) <= 1e-14);
}

TEST_CASE("RelativeKeys: the tensor counts once and starts as N(0, 1)") {
  Cpu::Context ctx(1);
  const RelativeKeys model{
      200, 2, Stack{Residual{update::Plain{}, RelativeAttention{.model_dim = 4, .heads = 2, .window = 200}}, 6}};
  const auto p = init_params<double, Cpu>(model, ctx, Seed{1});
  CHECK(count_values(p) == 200 * 2 + 6 * 4 * 16);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p);
  CHECK(names[0] == "relative");
  CHECK(names[1] == "layer.layers.0.branch.query");
  double mean = 0, variance = 0;
  for (const double v : values(p.relative)) mean += v / 400, variance += v * v / 400;
  CHECK(std::abs(mean) <= 5 / std::sqrt(400.0));
  CHECK(std::abs(variance - 1) <= 5 * std::sqrt(2 / 400.0));
}

TEST_CASE("RelativeKeys: gradients and conformance around a stack with dropout") {
  Cpu::Context ctx(1);
  const RelativeKeys model{3, 2, Stack{layer(), 2}};
  Extra<decltype(model), double, Cpu> extra{};
  std::get<0>(extra.layers).noise.random = Random{Seed{9}, 4};
  const auto report = check::gradients(ctx, model, {}, extra);
  CHECK_MESSAGE(report, report.str());
  const auto promises = check::conformance<Cpu, double>(model);
  CHECK_MESSAGE(promises, promises.str());
}

TEST_CASE("RelativeKeys: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto message = [&](const auto& model) {
    return message_of([&] {
      auto p = pass<float>(ctx, model, 6);
      p.forward();
    });
  };
  CHECK(message(RelativeKeys{0, 2, layer()}) == "RelativeKeys: window: expected at least 1, got 0");
  CHECK(message(RelativeKeys{3, 0, layer()}) == "RelativeKeys: head_dim: expected at least 1, got 0");
  CHECK(message(RelativeKeys{3, 4, layer()}) == "RelativeAttention: extra.relative: expected [3, 2], got [3, 4]");
  CHECK(message(RelativeKeys{3, 4, OneExpert{Linear{.model_dim = 4}}}) ==
        "RelativeKeys: layer: expected a RelativeAttention inside, got none");
}
