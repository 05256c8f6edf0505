#include "gatefold/model/decoder.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

DecoderSizes tiny(Index shared_dim) {
  return {.vocabulary = 13,
          .model_dim = 8,
          .depth = 3,
          .attention = {.heads = 4, .kv_heads = 2},
          .experts = 4,
          .picks = 2,
          .hidden_dim = 6,
          .shared_dim = shared_dim,
          .dense_layers = {1},
          .dense_dim = 7};
}

}  // namespace

TEST_CASE("with_decoder: training lowers the loss, with the same bits on 1 and 2 threads") {
  for (const Index shared_dim : {0, 5}) {
    std::vector<double> outcomes[2];
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      const DecoderSizes sizes = tiny(shared_dim);
      with_decoder(sizes, [&](const auto& model) {
        Trainer trainer{ctx, model, sizes.loss(), optim::AdamW{.lr = 1e-2}, Seed{1}};
        const std::vector<Index> ids{1, 5, 2, 7, 3, 1, 5, 2, 7, 3}, next{5, 2, 7, 3, 1, 5, 2, 7, 3, 1};
        const auto extra = extra_of<typename decltype(trainer)::Extra>(Segment<float, Cpu>{.length = 5});
        const double before = trainer.step(ids, next, extra);
        double after = before;
        for (int step = 0; step < 30; ++step) after = trainer.step(ids, next, extra);
        CHECK(after < 0.5 * before);
        outcomes[threads - 1] = values(trainer.params);
      });
    }
    CHECK(same_bits(outcomes[0], outcomes[1]));
  }
}

TEST_CASE("with_decoder: only the chosen branch of a layer has parameters") {
  Cpu::Context ctx(1);
  with_decoder(tiny(0), [&](const auto& model) {
    const auto params = init_params<float, Cpu>(model, ctx, Seed{1});
    std::set<std::string> names;
    for_each_tensor([&](const Name& at, const auto& t) { t.size() > 0 ? void(names.insert(at.str())) : void(); },
                    params);
    const std::string mixture = "layers.1.layers.0.layers.1.branch.branch.first.expert.up",
                      dense = "layers.1.layers.1.layers.1.branch.branch.second.up";
    CHECK(names.contains(mixture));
    CHECK(names.contains(dense));
    CHECK_FALSE(names.contains("layers.1.layers.1.layers.1.branch.branch.first.expert.up"));
  });
}

TEST_CASE("DecoderSizes.memory: rows of keys and values, or of latent vectors") {
  DecoderSizes sizes = tiny(0);
  CHECK(sizes.memory(2, 100).width == 2 * 2 * 2);
  CHECK(sizes.memory(2, 100).most == 100);
  sizes.attention.window = 10;
  CHECK(sizes.memory(2, 100).most == 9);
  sizes.windows = {10, 0, 10};
  CHECK(sizes.memory(2, 100).most == 100);
  sizes.latent = {.heads = 4, .latent_dim = 5, .plain_dim = 2, .rotary_dim = 4, .value_dim = 3};
  CHECK(sizes.memory(2, 100).width == 9);
}

TEST_CASE("with_decoder: wrong sizes are refused") {
  DecoderSizes sizes = tiny(0);
  sizes.dense_layers = {3};
  const auto message = [&] { return message_of([&] { with_decoder(sizes, [](const auto&) {}); }); };
  CHECK(message() == "DecoderSizes: dense_layers: expected layers from 0 to 2, got 3");
  sizes.windows = {4, 0};
  CHECK(message() == "DecoderSizes: windows.size(): expected 0 or 3 (depth), got 2");
  sizes.windows = {};
  sizes.dense_layers = {};
  sizes.sigmoid_router = true;
  CHECK(message() == "DecoderSizes: sigmoid_router: expected false, because latent_dim is 0, got true");
  sizes.sigmoid_router = false;
  sizes.clamped = true;
  sizes.shared_dim = 3;
  CHECK(message() == "DecoderSizes: clamped: expected false, because a latent_dim or shared_dim is given, got true");
  sizes.clamped = false;
  sizes.latent = {.heads = 4, .latent_dim = 5, .plain_dim = 2, .rotary_dim = 4, .value_dim = 3};
  sizes.windows = {1, 2, 3};
  CHECK(message() == "DecoderSizes: windows: expected none, because latent attention has no window, got 3");
  sizes.windows = {};
  sizes.shared_dim = 0;
  CHECK(message() == "DecoderSizes: shared_dim: expected at least 1, because latent_dim is given, got 0");
  sizes.depth = 0;
  CHECK(message() == "DecoderSizes: depth: expected at least 1, got 0");
}
