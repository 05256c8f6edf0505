#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/golden.hpp"
#include "support/vision.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// The outputs of a model for images, and the gradients of its loss.
template <class ModelT>
struct Outcome {
  Tensor<double, 2, Cpu> y, dx;
  Tensor<double, 1, Cpu> value;
  Params<ModelT, double, Cpu> grads;
};
template <class ModelT>
Outcome<ModelT> run(Cpu::Context& ctx, const ModelT& model, const Params<ModelT, double, Cpu>& params,
                    View<const double, 2, Cpu> x, const std::vector<Index>& labels) {
  const Index images = x.extent(0);
  Outcome<ModelT> o{Tensor<double, 2, Cpu>(images, model.out_dim()),
                    constant_tensor<double>(ctx, 0, images, model.in_dim()), Tensor<double, 1, Cpu>(1),
                    zeros_like(ctx, params)};
  Carry<ModelT, double, Cpu> carry;
  Saved<ModelT, double, Cpu> saved;
  Tensor<double, 2, Cpu> dy(images, model.out_dim());
  model.begin(ctx, params, images, carry);
  model.forward(ctx, params, x, carry, o.y, saved);
  CrossEntropy{}.forward<double, Cpu>(ctx, o.y, labels, o.value);
  CrossEntropy{}.backward<double, Cpu>(ctx, o.y, labels, dy);
  set_zero(ctx, carry);
  backward(model, ctx, params, x, saved, dy, carry, o.dx, o.grads);
  return o;
}
template <class ModelT>
std::vector<double> inferred(const ModelT& model, const Params<ModelT, double, Cpu>& params,
                             View<const double, 2, Cpu> x) {
  Cpu::Context ctx(1);
  Carry<ModelT, double, Cpu> carry;
  Tensor<double, 2, Cpu> y(x.extent(0), model.out_dim());
  model.begin(ctx, params, x.extent(0), carry);
  infer(model, ctx, params, x, carry, y);
  return values(y);
}

/// Compares logits, loss and all gradients with a case of tests/golden/vision.py. Other threads, infer, and an image
/// alone must give the same bits.
template <class ModelT>
void check_case(Golden& g, const ModelT& model) {
  Cpu::Context two(2), three(3, true);
  auto params = init_params<double, Cpu>(model, two, Seed{1});
  g.read("params", params);
  const auto x = g.matrix("x");
  const auto labels = g.indices("labels");
  const auto o = run(two, model, params, x, labels);
  g.compare("y", values(o.y));
  g.compare("value", values(o.value));
  g.compare("dx", values(o.dx));
  g.compare("grads", o.grads);
  CHECK(g.unread() == "");

  const auto other = run(three, model, params, x, labels);
  CHECK(same_bits(values(o.y, o.dx, o.value, o.grads), values(other.y, other.dx, other.value, other.grads)));
  CHECK(same_bits(inferred(model, params, x), values(o.y)));
  const auto second = inferred(model, params, x.view().rows(1, 1));
  for (Index c = 0; c < o.y.extent(1); ++c) CHECK(second[static_cast<std::size_t>(c)] == o.y(1, c));
}

}  // namespace

TEST_CASE("golden: V-MoE and Soft MoE vision transformers agree with PyTorch") {
  for (Golden& g : Golden::read_all("model/vision")) {
    CAPTURE(g.name);
    // Plain equals heavy ball without momentum to the bit (tests/update), so one type serves both and compiles once.
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
