#include "gatefold/model/decoder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>
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

/// Layers 0 and 2 attend in chunks of 3 positions, layer 1 has no positions.
DecoderSizes like_llama4() {
  DecoderSizes sizes = tiny(6);
  sizes.weight_on_input = true;
  sizes.attention.norm = QueryKeyNorm::rotated_head;
  sizes.attention.rotary.interleaved = true;
  sizes.attention.temperature = {.floor_scale = 2, .attn_scale = 0.3};
  sizes.chunks = {3, 0, 3};
  sizes.unrotated_layers = {1};
  return sizes;
}

}  // namespace

TEST_CASE("with_decoder: training lowers the loss, with equal bits") {
  for (const DecoderSizes& sizes : {tiny(0), tiny(5), like_llama4()}) {
    std::vector<double> outcomes[2];
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
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

TEST_CASE("with_decoder: chunks and unrotated layers give the bits of prefill") {
  constexpr Index items = 20;
  const std::vector<Index> ids{1, 5, 2, 7, 3, 1, 5, 2, 7, 3, 12, 0, 4, 4, 9, 8, 11, 10, 6, 1};
  const DecoderSizes sizes = like_llama4();
  with_decoder(sizes, [&](const auto& model) {
    using M = std::remove_cvref_t<decltype(model)>;
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      const auto params = init_params<float, Cpu>(model, ctx, Seed{1});
      Tensor<float, 2, Cpu> whole(items, sizes.model_dim), parts(items, sizes.model_dim);
      const auto run = [&](Index first, Index count, const CacheView<float, Cpu>& cache, View<float, 2, Cpu> y) {
        Carry<M, float, Cpu> carry;
        model.begin(ctx, params, count, carry);
        infer(model, ctx, params, View<const Index, 1, Cpu>(ids.data() + first, count), carry, y,
              extra_of<Extra<M, float, Cpu>>(Segment<float, Cpu>{.length = count, .cache = cache}));
      };
      run(0, items, {}, whole.view());
      for (const Index step : {1, 4, 7}) {
        KvCache<float, Cpu> cache(ctx, sizes.cache(1, items));
        for (Index first = 0; first < items; first += step) {
          const Index count = std::min(step, items - first);
          run(first, count, cache.of(count), parts.view().rows(first, count));
          cache.advance();
        }
        CAPTURE(step);
        CHECK(same_bits(values(parts), values(whole)));
      }
    }
  });
}

TEST_CASE("DecoderSizes.cache: keys and values of heads, or latent vectors") {
  DecoderSizes sizes = tiny(0);
  CHECK(sizes.cache(2, 100).layers == 3);
  CHECK(sizes.cache(2, 100).sequences == 2);
  CHECK(sizes.cache(2, 100).parts == 2 * 2);
  CHECK(sizes.cache(2, 100).width == 2);
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.attention.window = 10;
  CHECK(sizes.cache(2, 100).keep == 9);
  sizes.windows = {10, 0, 10};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.windows = {10, 20, 10};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.windows = {20, 20, 20};
  CHECK(sizes.cache(2, 100).keep == 19);
  sizes.windows = {};
  sizes.attention.window = 0;
  sizes.chunks = {7, 7, 7};
  CHECK(sizes.cache(2, 100).keep == 6);
  sizes.chunks = {7, 0, 7};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.chunks = {};
  sizes.latent = {.heads = 4, .latent_dim = 5, .plain_dim = 2, .rotary_dim = 4, .value_dim = 3};
  CHECK(sizes.cache(2, 100).parts == 1);
  CHECK(sizes.cache(2, 100).width == 9);
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
  sizes.unrotated_layers = {0, -1};
  CHECK(message() == "DecoderSizes: unrotated_layers: expected layers from 0 to 2, got -1");
  sizes.unrotated_layers = {};
  sizes.chunks = {4};
  CHECK(message() == "DecoderSizes: chunks.size(): expected 0 or 3 (depth), got 1");
  sizes.chunks = {};
  sizes.weight_on_input = true;
  CHECK(message() == "DecoderSizes: shared_dim: expected at least 1, because weight_on_input is given, got 0");
  sizes.clamped = true;
  CHECK(message() ==
        "DecoderSizes: weight_on_input: expected false, because a latent_dim or clamped is given, got true");
  sizes.weight_on_input = sizes.clamped = false;
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
  sizes.unrotated_layers = {1};
  CHECK(message() == "DecoderSizes: chunks and unrotated_layers: expected none, because a latent_dim is given, got 1");
  sizes.unrotated_layers = {};
  sizes.shared_dim = 0;
  CHECK(message() == "DecoderSizes: shared_dim: expected at least 1, because latent_dim is given, got 0");
  sizes.depth = 0;
  CHECK(message() == "DecoderSizes: depth: expected at least 1, got 0");
}
