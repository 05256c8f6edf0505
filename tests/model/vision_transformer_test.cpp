#include "gatefold/model/vision_transformer.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"
#include "support/vision.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// The parts of a vision transformer, each counted by hand: width D, and hidden width H of a dense network or an
/// expert.
struct Terms {
  Index side, patch, d, h, depth;
  Index tokens() const { return side / patch * (side / patch) + 1; }  // with the class token
  Index embedding() const { return patch * patch * 3 * d + d; }
  Index places() const { return tokens() * d + d; }        // and the class token
  Index attention() const { return 4 * d * d; }            // query, key, value, output, without bias
  Index network() const { return d * h + h + h * d + d; }  // two matrices, two biases
  Index norm() const { return 2 * d; }                     // gain and bias
  Index head(Index classes) const { return d * classes + classes; }
  Index dense() const {
    return embedding() + places() + depth * (attention() + network() + 2 * norm()) + norm() + head(1000);
  }
};
/// Rounds to tenths of a million, as papers do.
Index tenths_of_million(Index count) { return (count + 50'000) / 100'000; }

}  // namespace

TEST_CASE("vision transformers: parameter counts equal those of the papers") {
  // Soft MoE tiny of paper 001: DeiT tiny whose last six networks are mixtures of 128 experts of one slot.
  const Terms tiny{224, 16, 192, 768, 12};
  const Index slots = 128 * tiny.d + 1;  // a vector for each slot, and one scale
  const Index by_hand = tiny.dense() + 6 * (slots + 127 * tiny.network());
  const Mlp<Gelu> of_tiny{192, 768};
  const Mixture of_128{SoftMoe{.count = 128}, of_tiny};
  CHECK(by_hand == 231'310'126);
  CHECK(count_parameters(soft_moe_model(VisionSizes::tiny_16(), update::HeavyBall{}, of_128, of_tiny)) == by_hand);
  CHECK(tenths_of_million(by_hand) == 2313);
  // Biases of the four maps of attention, as DeiT has them, would be 0.009 million more.
  CHECK(tenths_of_million(by_hand + 12 * 4 * tiny.d) == 2313);

  // V-MoE S/32 with 8 experts: a router without bias, seven networks more.
  const Terms small{224, 32, 512, 2048, 8};
  const Index mixture = 8 * small.d + 7 * small.network();
  const VisionSizes sizes = VisionSizes::small_32();
  const Mlp<Gelu> of_small{512, 2048};
  const Mixture sparse{published::vmoe({.experts = 8}), of_small};
  const update::HeavyBall rule{};
  CHECK(count_parameters(vmoe_last(sizes, rule, sparse, of_small, 2)) == small.dense() + 2 * mixture);
  CHECK(count_parameters(vmoe_every_2(sizes, rule, sparse, of_small)) == small.dense() + 4 * mixture);
  // The authors' code of V-MoE has two more parts: biases in attention, and a layer as wide as the model before the
  // head. With these it has the 57.0 and 86.4 million parameters of its configuration. Paper 001's 297 million fit no
  // size of S/32.
  const Index more = 8 * 4 * small.d + (small.d * small.d + small.d);
  CHECK(tenths_of_million(small.dense() + 2 * mixture + more) == 570);
  CHECK(tenths_of_million(small.dense() + 4 * mixture + more) == 864);
  // The reference form has one more norm in each layer.
  CHECK(count_parameters(vmoe_every_2<vision::Reference>(sizes, update::Robust{}, sparse, of_small)) ==
        small.dense() + 4 * mixture + 8 * small.norm());
  // Without a class token both the token and its position are missing.
  VisionSizes mean = sizes;
  mean.class_token = false;
  CHECK(count_parameters(vmoe_every_2(mean, rule, sparse, of_small)) == small.dense() + 4 * mixture - 2 * small.d);
}

TEST_CASE("vision transformers: gradients with attention-aware gates are correct") {
  VisionSizes dropped = tiny_images(true);
  dropped.depth = 2;
  dropped.dropout = 0.2;
  const auto model = vmoe_every_2<vision::Traced>(
      dropped, update::HeavyBall{.mu = 0.6},
      Mixture{AttentionAware<SoftmaxTopK>{.scores = scores, .selection = {.k = 2}}, network}, network);
  Cpu::Context ctx(1);
  const auto report = check::gradients(
      ctx, model, {.items = 2, .of_largest = 1e-8, .moved = 0.3},
      extra_of<Extra<decltype(model), double, Cpu>>(Segment<double, Cpu>{.noise = {Random{Seed{5}, 3}}}));
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("vision transformers: wrong options throw") {
  const auto says = [](auto&& make) { return message_of([&] { (void)make(); }); };
  VisionSizes odd = tiny_images(true);
  odd.depth = 3;
  CHECK(says([&] { return vmoe_every_2(odd, update::Plain{}, vmoe, network); }) ==
        "vmoe_every_2: depth: expected an even number, got 3");
  CHECK(says([&] { return vmoe_last(tiny_images(true), update::Plain{}, vmoe, network, 2); }) ==
        "vmoe_last: depth: expected an even number above 4, got 4");
  CHECK(says([&] { return vmoe_last(tiny_images(true), update::Plain{}, vmoe, network, 0); }) ==
        "vmoe_last: n: expected at least 1, got 0");
  CHECK(says([&] { return soft_moe_model(odd, update::Plain{}, soft, network); }) ==
        "soft_moe_model: depth: expected an even number, got 3");
  VisionSizes none = tiny_images(true);
  none.classes = 0;
  CHECK(says([&] { return vmoe_every_2(none, update::Plain{}, vmoe, network); }) ==
        "vision_transformer: classes: expected at least 1, got 0");
  VisionSizes patch = tiny_images(true);
  patch.patch = 3;
  CHECK(says([&] { return vmoe_every_2(patch, update::Plain{}, vmoe, network); }) ==
        "ImagePatches: rows: expected a multiple of patch = 3, got 4");
  patch.patch = 0;
  CHECK(says([&] { return vmoe_every_2(patch, update::Plain{}, vmoe, network); }) ==
        "ImagePatches: patch: expected at least 1, got 0");
}
