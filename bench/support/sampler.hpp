#pragma once

#include <utility>
#include <vector>

#include "layer.hpp"

namespace bench {

/// The sizes of a small model of characters: 4 blocks, width 128, 8 experts of hidden width 256, top 2, 90 characters.
inline const LanguageSizes kCharacters{.vocabulary = 90, .model_dim = 128, .heads = 4, .window = 64, .depth = 4};
inline constexpr Shape kCharacterShape{64, 128, 256, 8, 2};

inline auto characters() {
  return switch_model(kCharacters, update::HeavyBall{},
                      Mixture{plain_gate(kCharacterShape), plain_expert(kCharacterShape)});
}

/// A language model with its parameters and its state for some sequences. All samplers have the same parameters.
struct Sampler {
  using Model = decltype(characters());
  using Extra = gatefold::Extra<Model, float, Cpu>;

  Index sequences;
  Cpu::Context ctx;
  Model model = characters();
  StreamedCrossEntropy loss = kCharacters.loss();
  Params<Model, float, Cpu> params = model.init<float, Cpu>(ctx, Seed{1});
  Params<StreamedCrossEntropy, float, Cpu> output = loss.init<float, Cpu>(ctx, Seed{2});
  Carry<Model, float, Cpu> carry{};
  Tensor<float, 2, Cpu> y{}, last{sequences, kCharacters.model_dim}, z{sequences, kCharacters.vocabulary};

  /// @param count  number of sequences that are continued together
  explicit Sampler(int threads, Index count = 1) : sequences(count), ctx(context(threads)) {}

  /// Returns a KV cache for the sequences.
  SegmentMemory<float, Cpu> memory() {
    return {ctx,
            {.layers = kCharacters.depth,
             .sequences = sequences,
             .width = 2 * kCharacters.model_dim,
             .most = kCharacters.window - 1}};
  }
  /// Returns the ids of `length` characters of each sequence.
  std::vector<Index> ids(Index length) const {
    std::vector<Index> all;
    for (Index i = 0; i < sequences * length; ++i) all.push_back(i * i % kCharacters.vocabulary);
    return all;
  }
  /// Computes the logits of the next character of each sequence.
  /// @param ids  the same number of ids of each sequence, one sequence after the other
  void read(const std::vector<Index>& ids, const AttentionMemory<float, Cpu>& memory) {
    const Index count = static_cast<Index>(ids.size()), length = count / sequences;
    y.resize(count, kCharacters.model_dim);
    model.begin(ctx, params, count, carry);
    infer(model, ctx, params, ids, carry, y, extra_of<Extra>(Segment<float, Cpu>{.length = length, .memory = memory}));
    for (Index s = 0; s < sequences; ++s)
      for (Index j = 0; j < kCharacters.model_dim; ++j) last(s, j) = y((s + 1) * length - 1, j);
    loss.logits(ctx, output, params, last, z.view());
  }
};

}  // namespace bench
