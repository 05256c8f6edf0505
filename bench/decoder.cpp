#include <gatefold/model/decoder.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/layer.hpp"

// Times two layers of published decoders with their true sizes and random weights: reading a prompt of 512 tokens,
// generating one more token with a KV cache, and a training step on 512 tokens. The vocabulary has only 1024 tokens.
// Only the training step includes the output layer. peers/decoder_torch.py takes the same three measurements with
// transformers.
namespace {

using namespace bench;

constexpr Index kPrompt = 512;

/// Returns the sizes of two layers of OLMoE-1B-7B.
DecoderSizes olmoe() {
  return {.vocabulary = 1024,
          .model_dim = 2048,
          .depth = 2,
          .attention = {.heads = 16, .norm = QueryKeyNorm::all},
          .experts = 64,
          .picks = 8,
          .hidden_dim = 1024,
          .renormalise = false};
}
/// Returns the sizes of two layers of Qwen3-30B-A3B.
DecoderSizes qwen3() {
  return {.vocabulary = 1024,
          .model_dim = 2048,
          .depth = 2,
          .attention = {.heads = 32, .kv_heads = 4, .head_dim = 128, .norm = QueryKeyNorm::head},
          .experts = 128,
          .picks = 8,
          .hidden_dim = 768};
}

/// Returns the bytes of weights and of remembered keys and values that the generation of one token reads.
double bytes_of_token(const DecoderSizes& s, Index remembered, double bytes_of_weight) {
  const Index width = s.attention.with_model_dim(s.model_dim).width(),
              kv = s.attention.kv_heads > 0 ? s.attention.kv_heads : s.attention.heads;
  const double weights = double(s.picks * 3 * s.model_dim * s.hidden_dim) +
                         double(2 * s.model_dim * width * (s.attention.heads + kv)),
               router = double(s.model_dim * s.experts), keys = double(2 * kv * width * remembered);
  return double(s.depth) * (weights * bytes_of_weight + (router + keys) * 4);
}

std::vector<Index> tokens(Index count, Index factor) {
  std::vector<Index> ids(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) ids[static_cast<std::size_t>(i)] = i * factor % 1024;
  return ids;
}

/// A decoder with packed weights, and a KV cache of one sequence.
/// @tparam B  Cpu converts bfloat16 weights to float and multiplies floats. CpuBf16 multiplies bfloat16
template <class B, class M>
struct Served {
  typename B::Context ctx = context<B>(0);
  const DecoderSizes sizes;
  const M model;
  FrozenParams<Params<M, float, B>, B> params =
      freeze(ctx, init_params<float, B>(model, ctx, Seed{1}), {.weights = Weights::bfloat16});
  KvCache<float, B> cache{ctx, sizes.cache(1, 2 * kPrompt)};
  Carry<M, float, B> carry{};
  Tensor<float, 2, B> y{};

  void read(const std::vector<Index>& ids) {
    const auto count = static_cast<Index>(ids.size());
    y.resize(count, sizes.model_dim);
    model.begin(ctx, model_params(params), count, carry);
    const Segment<float, B> segment{.length = count, .cache = cache.of(count)};
    infer(model, ctx, params, View<const Index, 1, B>(ids.data(), count), carry, y.view(),
          extra_of<Extra<M, float, B>>(segment));
    cache.advance();
  }
  void read_prompt() {
    cache.begin();
    read(tokens(kPrompt, 7919));
  }
};

template <class B>
void decoder_prefill(benchmark::State& state, const DecoderSizes& sizes) {
  with_decoder(sizes, [&](const auto& model) {
    Served<B, std::remove_cvref_t<decltype(model)>> served{.sizes = sizes, .model = model};
    Rounds rounds;
    run_rounds(state, rounds, rounds.time([&] { served.read_prompt(); }));
  });
}
template <class B>
void decoder_decode(benchmark::State& state, const DecoderSizes& sizes) {
  with_decoder(sizes, [&](const auto& model) {
    Served<B, std::remove_cvref_t<decltype(model)>> served{.sizes = sizes, .model = model};
    served.read_prompt();
    Rounds rounds;
    const std::vector<Index> token{3};
    constexpr Index steps = 16;
    const auto one = rounds.measure([&] {
      served.read_prompt();
      const double begin = now();
      for (Index i = 0; i < steps; ++i) served.read(token);
      return (now() - begin) / double(steps);
    });
    const ReadBandwidth bandwidth_of;
    const auto bandwidth = rounds.measure([&] { return bandwidth_of(served.ctx.threads()); });
    run_rounds(state, rounds, one);
    const double bytes = bytes_of_token(sizes, kPrompt + steps / 2, 2);
    count(state, "bandwidth_share", rounds.median_over([&](auto of) { return bytes / of(one) / of(bandwidth); }));
  });
}
void decoder_train(benchmark::State& state, const DecoderSizes& sizes) {
  with_decoder(sizes, [&](const auto& model) {
    CpuBf16::Context ctx = context<CpuBf16>(0);
    Trainer trainer{ctx, model, sizes.loss(), optim::Sgd{.lr = 1e-3}, Seed{1}};
    const std::vector<Index> ids = tokens(kPrompt, 7919), next = tokens(kPrompt, 104729);
    const View<const Index, 1, CpuBf16> x(ids.data(), kPrompt), target(next.data(), kPrompt);
    Rounds rounds;
    run_rounds(state, rounds, rounds.time([&] { trainer.step(x, target); }));
  });
}
[[maybe_unused]] const bool registered = [] {
  const auto add = [](const std::string& name, void (*row)(benchmark::State&, const DecoderSizes&),
                      DecoderSizes (*sizes)()) {
    timed(benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { row(state, sizes()); }));
  };
  const std::pair<std::string, DecoderSizes (*)()> decoders[] = {{"olmoe", olmoe}, {"qwen3", qwen3}};
  for (const auto& [of, sizes] : decoders) {
    add("decoder_prefill/" + of + "/Cpu", decoder_prefill<Cpu>, sizes);
    add("decoder_prefill/" + of + "/CpuBf16", decoder_prefill<CpuBf16>, sizes);
    add("decoder_decode/" + of + "/Cpu", decoder_decode<Cpu>, sizes);
    add("decoder_decode/" + of + "/CpuBf16", decoder_decode<CpuBf16>, sizes);
    add("decoder_train/" + of + "/CpuBf16", decoder_train, sizes);
  }
  return true;
}();

}  // namespace
