#include <doctest/doctest.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "gatefold/gatefold.hpp"
#include "gatefold/model/decoder.hpp"
#include "support/rounding_check.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Calls f(name, sizes) with a decoder of each form: Mixtral, Qwen2-MoE, gpt-oss, DeepSeek-V2 and DeepSeek-V3.
template <class F>
void for_each_form(const F& f) {
  const DecoderSizes mixtral{.vocabulary = 1,
                             .model_dim = 24,
                             .depth = 2,
                             .attention = {.heads = 4, .kv_heads = 2, .head_dim = 10},
                             .experts = 5,
                             .picks = 2,
                             .hidden_dim = 20};
  f("mixtral", mixtral);
  DecoderSizes qwen2 = mixtral;
  qwen2.shared_dim = 17;
  qwen2.renormalise = false;
  qwen2.attention.bias = true;
  qwen2.dense_layers = {0};
  qwen2.dense_dim = 33;
  f("qwen2_moe", qwen2);
  DecoderSizes gpt_oss = mixtral;
  gpt_oss.clamped = gpt_oss.attention.bias = gpt_oss.attention.output_bias = gpt_oss.attention.sinks = true;
  gpt_oss.windows = {4, 0};
  f("gpt_oss", gpt_oss);
  DecoderSizes deepseek = qwen2;
  deepseek.latent = {.heads = 3, .query_rank = 9, .latent_dim = 11, .plain_dim = 6, .rotary_dim = 4, .value_dim = 7};
  f("deepseek_v2", deepseek);
  deepseek.experts = 6;
  deepseek.groups = 3;
  deepseek.top_groups = 2;
  deepseek.router_scale = 1.5;
  f("deepseek_v2_groups", deepseek);
  deepseek.sigmoid_router = true;
  f("deepseek_v3", deepseek);
}

}  // namespace

TEST_CASE("CpuBf16: decoders match decoders in double with the same rounding") {
  for_each_form([](const char* name, const DecoderSizes& sizes) {
    CAPTURE(name);
    with_decoder(sizes, [](const auto& model) {
      const auto& layers = std::get<1>(model.layers);  // without the embedding, whose inputs are ids
      for (std::uint64_t seed = 1;; ++seed) {
        REQUIRE(seed <= 5);  // more than 5 tries would mean that the routing depends too much on rounding
        const RoundedLayer<std::remove_cvref_t<decltype(layers)>> rounded(
            layers, Case{.items = 14, .length = 7, .seed = {seed}}, 0.2);
        if (!rounded.steady()) continue;
        CpuBf16::Context one(1), two(2, true);
        const auto got = outcome(rounded.template run<float, CpuBf16>(one));
        rounded.expect(got);
        CHECK(same(got, outcome(rounded.template run<float, CpuBf16>(two))));
        break;
      }
    });
  });
}
