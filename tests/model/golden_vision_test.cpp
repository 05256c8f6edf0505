#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "support/golden.hpp"
#include "support/vision.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index images = 2;
/// Logits, loss and all gradients of a case of tests/golden/vision.py.
template <class ModelT>
void check_case(Golden& g, const ModelT& model) {
  Cpu::Context ctx(2);
  auto params = init_params<double, Cpu>(model, ctx, Seed{1});
  g.read("params", params);
  auto grads = zeros_like(ctx, params);
  const auto x = g.matrix("x");
  const auto labels = g.indices("labels");
  Carry<ModelT, double, Cpu> carry;
  Saved<ModelT, double, Cpu> saved;
  Tensor<double, 2, Cpu> y(images, model.out_dim()), dy(images, model.out_dim());
  auto dx = constant_tensor<double>(ctx, 0, images, model.in_dim());
  Tensor<double, 1, Cpu> value(1);
  model.begin(ctx, params, images, carry);
  model.forward(ctx, params, x, carry, y, saved);
  CrossEntropy{}.forward<double, Cpu>(ctx, y, labels, value);
  CrossEntropy{}.backward<double, Cpu>(ctx, y, labels, dy);
  set_zero(ctx, carry);
  backward(model, ctx, params, x, saved, dy, carry, dx, grads);
  g.compare("y", values(y));
  g.compare("value", values(value));
  g.compare("dx", values(dx));
  g.compare("grads", grads);
  CHECK(g.unread() == "");
}

}  // namespace

TEST_CASE("golden: vision transformers, V-MoE and Soft MoE, plain, with momentum, and in the form of the code") {
  for (Golden& g : Golden::read_all("model/vision")) {
    CAPTURE(g.name);
    // Plain is heavy ball without momentum, to the bit (tests/update), and compiles once with it.
    const auto heavy = [&] { return update::HeavyBall{.mu = g.option("mu"), .gamma = g.option("gamma")}; };
    if (g.name == "last_heavy_ball") {
      check_case(g, vmoe_last(tiny_images(true), heavy(), vmoe, network, 1));
    } else if (g.name == "every_2_robust_reference") {
      const update::Robust rule{.p = g.option("p"), .k = g.option("k"), .l = g.option("l")};
      check_case(g, vmoe_every_2<vision::Reference>(tiny_images(true), rule, vmoe, network));
    } else if (g.name == "every_2_similar") {
      check_case(g, vmoe_every_2(tiny_images(false), heavy(), similar, network));
    } else {
      check_case(g, soft_moe_model(tiny_images(false), heavy(), soft, network));
    }
  }
}
