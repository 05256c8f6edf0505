#include "descriptors/expert.hpp"
#include "support/layer.hpp"

// Times each kind of expert separately: forward in training, and backward. All experts get the same number of items.
namespace {

using namespace bench;

/// The slots (pairs of item and expert) of a batch that is spread evenly over the experts. Slot s computes item s / K.
struct Spread {
  Tensor<Index, 1, Cpu> offsets, rows;
  Spread(Index items, Index experts, Index picks) : offsets(experts + 1), rows(items * picks) {
    for (Index e = 0; e <= experts; ++e) offsets(e) = rows.size() * e / experts;
    for (Index s = 0; s < rows.size(); ++s) rows(s) = s / picks;
  }
  Groups<Cpu> groups() const { return {offsets, rows, rows.size()}; }
};

/// Times one kind of expert.
/// @param flop  floating-point operations of forward, or 0 if unknown; backward has twice as many
template <class ExpertT>
void expert(benchmark::State& state, ExpertT policy, Index items, Index experts, Index picks, double flop) {
  Cpu::Context ctx = context();
  const Spread spread(items, experts, picks);
  const auto params = policy.template init<float, Cpu>(ctx, experts, Seed{1});
  auto grads = zeros_like(ctx, params);
  const Index slots = items * picks;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.7, items, policy.in_dim());
  const auto dz = uniform_tensor<float>(ctx, Seed{3}, 1, slots, policy.out_dim());
  Tensor<float, 2, Cpu> z(slots, policy.out_dim()), dslots(slots, policy.in_dim());
  Saved<ExpertT, float, Cpu> saved;

  Rounds rounds;
  const auto groups = spread.groups();
  rounds.time([&] { policy.forward(ctx, params, groups, x, z, saved); });
  const auto peak = add_peak(rounds, ctx.threads());
  const auto backward = rounds.time([&] { policy.backward(ctx, params, groups, x, saved, dz, dslots, grads); });
  run_rounds(state, rounds);
  count(state, "backward_ms", rounds.median_of(backward) * 1e3);
  count(state, "items_per_second", static_cast<double>(items) / rounds.median_of(0));
  if (flop == 0) return;
  count(state, "gflops", flop / rounds.median_of(0) * 1e-9);
  count(state, "peak_share", rounds.median_over([&](auto of) { return flop / of(0) / of(peak); }));
  count(state, "backward_peak_share", rounds.median_over([&](auto of) { return 2 * flop / of(backward) / of(peak); }));
}

constexpr Index kItems = 2048, kDim = 352, kHidden = 704, kExperts = 16, kPicks = 2, kSlots = kItems * kPicks;
constexpr double kProduct = 2.0 * kSlots * kDim * kHidden;
template <class ExpertT>
void wide(benchmark::State& state, ExpertT policy, double products) {
  expert(state, policy, kItems, kExperts, kPicks, products * kProduct);
}

/// Sizes for items that consist of several positions or patches, as in papers 000 and 003 of docs/studies.
constexpr Index kSequences = 256, kLength = 16, kWidth = 64;
template <class ExpertT>
void positions(benchmark::State& state, ExpertT policy, double flop) {
  expert(state, policy, kSequences, 8, 1, kSequences * flop);
}
constexpr double kAttend = 8.0 * kLength * kWidth * kWidth + 4.0 * kLength * kLength * kWidth;

BENCHMARK_CAPTURE(wide, Linear, Linear{.model_dim = kDim, .output_dim = kHidden}, 1)->Apply(timed);
BENCHMARK_CAPTURE(wide, MlpRelu, Mlp<Relu>{.model_dim = kDim, .hidden_dim = kHidden}, 2)->Apply(timed);
BENCHMARK_CAPTURE(wide, MlpGelu, Mlp<Gelu>{.model_dim = kDim, .hidden_dim = kHidden}, 2)->Apply(timed);
BENCHMARK_CAPTURE(wide, MlpGeluTanh, Mlp<GeluTanh>{.model_dim = kDim, .hidden_dim = kHidden}, 2)->Apply(timed);
BENCHMARK_CAPTURE(wide, MlpSilu, Mlp<Silu>{.model_dim = kDim, .hidden_dim = kHidden}, 2)->Apply(timed);
BENCHMARK_CAPTURE(wide, GatedMlpSilu, GatedMlp<Silu>{.model_dim = kDim, .hidden_dim = kHidden}, 3)->Apply(timed);
BENCHMARK_CAPTURE(positions, PatchMlp, PatchMlp<Cubic>{.model_dim = kWidth, .patches = kLength, .filters = 32},
                  2.0 * kLength * kWidth * 32)
    ->Apply(timed);
BENCHMARK_CAPTURE(positions, PatchCnn, PatchCnn<Cubic>{.model_dim = kWidth, .patches = kLength, .filters = 32},
                  2.0 * kLength * kWidth * 32)
    ->Apply(timed);
BENCHMARK_CAPTURE(positions, AttentionExpert, AttentionExpert{.model_dim = kWidth, .length = kLength},
                  2.0 * kLength * kWidth * (kWidth + kLength))
    ->Apply(timed);
BENCHMARK_CAPTURE(positions, MultiHeadExpert, MultiHeadExpert{.model_dim = kWidth, .heads = 4, .length = kLength},
                  kAttend)
    ->Apply(timed);
BENCHMARK_CAPTURE(positions, TransformerExpert,
                  TransformerExpert<Gelu>{.model_dim = kWidth, .hidden_dim = 2 * kWidth, .heads = 4, .length = kLength},
                  kAttend + 4.0 * kLength * kWidth * 2 * kWidth)
    ->Apply(timed);

// Times every expert in tests/descriptors/expert.hpp, with items of 16 positions. Some experts compute whole items.
constexpr rows::Size kSize{.width = kWidth, .tokens = kLength, .hidden = 2 * kWidth, .heads = 4, .experts = 8};
template <class ExpertT>
void row(benchmark::State& state, ExpertT policy) {
  expert(state, policy, kSequences, kSize.experts, 1, 0);
}
#define ROW(name) BENCHMARK_CAPTURE(row, name, rows::name.make(kSize))->Apply(timed);
#include "rows/expert.inc"

}  // namespace
