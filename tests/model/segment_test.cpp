#include "gatefold/model/segment.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/model/language_model.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const LanguageSizes sizes{.vocabulary = 7, .model_dim = 4, .heads = 2, .window = 3, .depth = 5, .dropout = 0.2};
const Mlp<Relu> expert{.model_dim = 4, .hidden_dim = 3};
template <class ModelT>
using ExtraOf = Extra<ModelT, double, Cpu>;

bool same(const Noise& a, const Noise& b) { return a.random->seed.value == b.random->seed.value; }

}  // namespace

TEST_CASE("extra_of: a segment reaches every layer's parts") {
  const auto model = glam_model(sizes, update::Plain{},
                                Mixture{SimilarityAware<SoftmaxNoisyTop1>{.scores = {.experts = 3}}, expert}, expert);
  Cpu::Context ctx(1);
  SegmentMemory<double, Cpu> memory(ctx, {.layers = 10, .sequences = 2, .width = 4, .most = 2});
  memory.begin(ctx, 2);
  const std::vector<double> valid(12, 1);
  const Segment<double, Cpu> segment{
      .length = 6, .noise = {Random{Seed{9}, 4}}, .memory = memory.of(6), .valid = valid};
  const auto extra = extra_of<ExtraOf<decltype(model)>>(segment);

  const auto& [first, second] = std::get<1>(extra.layers).layers;
  const auto& [attention, mixture] = first.layers;
  const auto& [of_dense, dense] = second.layers;
  CHECK(attention.length == 6);
  CHECK(of_dense.length == 6);
  CHECK(mixture.branch.mixing.length == 6);

  for (const auto& mask : {attention.valid, of_dense.valid, mixture.branch.valid}) CHECK(mask.data() == valid.data());

  // Each attention of the pair gets as many layers of the memory as there are pairs; the first attention gets the first
  // ones.
  CHECK(attention.memory.past.data() == segment.memory.past.data());
  CHECK(of_dense.memory.past.data() == &segment.memory.past(5, 0, 0));
  CHECK(of_dense.memory.next.data() == &segment.memory.next(5, 0, 0));
  for (const auto* of : {&attention.memory, &of_dense.memory}) {
    CHECK(of->past.extent(0) == 5);
    CHECK(of->next.extent(0) == 5);
    CHECK(of->valid.data() == segment.memory.valid.data());
    CHECK(of->next_valid.data() == segment.memory.next_valid.data());
  }

  const Noise* const streams[] = {&attention.noise, &mixture.noise, &mixture.branch.selection, &of_dense.noise};
  for (const Noise* a : streams) {
    REQUIRE(a->random);
    CHECK(a->random->step == 4);
    for (const Noise* b : streams) CHECK(same(*a, *b) == (a == b));
  }
}

TEST_CASE("extra_of: an empty segment sets nothing; uneven memory throws") {
  const auto model = glam_model(sizes, update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, expert}, expert);
  const auto none = extra_of<ExtraOf<decltype(model)>>(Segment<double, Cpu>{});
  const auto& [attention, mixture] = std::get<0>(std::get<1>(none.layers).layers).layers;
  CHECK(attention.length == 0);
  CHECK_FALSE(attention.noise.random);
  CHECK_FALSE(mixture.noise.random);
  CHECK(attention.memory.past.data() == nullptr);
  CHECK(attention.valid.data() == nullptr);

  Cpu::Context ctx(1);
  SegmentMemory<double, Cpu> memory(ctx, {.layers = 5, .sequences = 2, .width = 4, .most = 2});
  const Segment<double, Cpu> odd{.length = 6, .memory = memory.of(6)};
  CHECK(message_of([&] { extra_of<ExtraOf<decltype(model)>>(odd); }) ==
        "extra_of: segment.memory: expected a multiple of 2 layers (the number of attentions), got 5");
}

TEST_CASE("extra_of: a memory throws if no attention has memory") {
  const auto model = switch_model<language::Traced>(
      sizes, update::Plain{}, Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}}, expert});
  Cpu::Context ctx(1);
  SegmentMemory<double, Cpu> memory(ctx, {.layers = 5, .sequences = 2, .width = 4, .most = 2});
  CHECK(message_of([&] { extra_of<ExtraOf<decltype(model)>>(Segment<double, Cpu>{.memory = memory.of(3)}); }) ==
        "extra_of: segment.memory: expected no memory, because no attention of the model has memory, got a memory");
  const auto extra = extra_of<ExtraOf<decltype(model)>>(Segment<double, Cpu>{.length = 3});
  CHECK(std::get<0>(extra.layers).length == 3);  // positions begin anew in each sequence
}

TEST_CASE("extra_of: a KV cache reaches every attention that takes one") {
  Cpu::Context ctx(1);
  const DecoderSizes decoder{.vocabulary = 7,
                             .model_dim = 4,
                             .depth = 3,
                             .attention = {.heads = 2},
                             .experts = 2,
                             .picks = 1,
                             .hidden_dim = 3};
  KvCache<double, Cpu> cache(ctx, decoder.cache(2, 9));
  const Segment<double, Cpu> segment{.length = 5, .cache = cache.of(5)};
  with_decoder(decoder, [&](const auto& model) {
    const auto extra = extra_of<ExtraOf<std::remove_cvref_t<decltype(model)>>>(segment);
    const auto& attention = std::get<0>(std::get<1>(extra.layers).layers);
    CHECK(attention.length == 5);
    CHECK(attention.cache.rows.data() == segment.cache.rows.data());
    CHECK(attention.cache.rows.extent(0) == 3);
    CHECK(attention.at(2).cache.rows.data() == &segment.cache.rows(2, 0, 0));
    SegmentMemory<double, Cpu> memory(ctx, {.layers = 3, .width = 4, .most = 2});
    CHECK(message_of([&] {
            extra_of<ExtraOf<std::remove_cvref_t<decltype(model)>>>(Segment<double, Cpu>{.memory = memory.of(3)});
          }) ==
          "extra_of: segment.memory: expected no memory, because the attentions of the model take a cache (KvCache), "
          "got a memory");
  });
  const auto without = switch_model(sizes, update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, expert});
  CHECK(message_of([&] { extra_of<ExtraOf<std::remove_cvref_t<decltype(without)>>>(segment); }) ==
        "extra_of: segment.cache: expected no cache, because no attention of the model takes one, got a cache");
}
