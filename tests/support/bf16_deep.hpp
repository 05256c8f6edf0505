#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "support/rounding_check.hpp"

/// Layers of several parts. Their widths, hidden values and groups are larger than a register or tile, and not
/// multiples of its size. The layers of the descriptor rows are smaller than a register or tile.
namespace gatefold::test {

/// Calls f(rounded) for each layer. Its items are chosen so that the routing stays the same if values close to a
/// rounding border are rounded the other way.
/// @tparam B  RoundedDouble or RoundedSlots
template <class B, class F>
void for_each_deep_layer(const F& f) {
  const auto with = [&](const char* name, const auto& layer, Index items, Index length = 0) {
    CAPTURE(name);
    for (std::uint64_t seed = 1;; ++seed) {
      REQUIRE(seed <= 5);  // more than 5 tries would mean that the routing depends too much on rounding
      const RoundedLayer<std::remove_cvref_t<decltype(layer)>, B> rounded(
          layer, Case{.items = items, .length = length, .seed = {seed}}, 0.2);
      if (rounded.steady()) return f(rounded);
    }
  };
  with("70 experts, 9 picks",
       Residual{update::Robust{},
                PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 70}, .selection = {.k = 9}},
                                             Mlp<Gelu>{.model_dim = 23, .hidden_dim = 17}}}},
       11);
  with("two layers of one expert",
       Stack{Residual{update::Adam{.epsilon = 0.1},
                      Mixture{WithAuxiliary<SigmoidTopK, ZLoss>{.scores = {.experts = 1},
                                                                .selection = {.k = 1, .renormalise = false}},
                              GatedMlp<Silu>{.model_dim = 24, .hidden_dim = 20}}},
             2},
       14);
  with("attention, and a gate that follows it",
       Block{Residual{update::Plain{}, PreNorm{RmsNorm{}, Attention{.model_dim = 24, .heads = 2}}},
             Residual{update::LearnedHeavyBall{},
                      Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 5}}, Linear{.model_dim = 24}}}},
       20, 10);
  with("Soft MoE", Mixture{SoftMoe{.count = 3, .slots = 2}, Mlp<Relu>{.model_dim = 24, .hidden_dim = 12}}, 20, 10);
  with("sequences for items",
       Residual{update::HeavyBall{},
                Mixture{SimilarityAware<SoftmaxTopK>{.scores = {.experts = 4}, .mixing = {.causal = false}},
                        MultiHeadExpert{.model_dim = 8, .heads = 2, .length = 3}}},
       8, 8);
  with("two layers of experts that choose, computed again in backward",
       Stack{Recompute{Residual{update::HeavyBall{}, Mixture{SoftmaxExpertChoice{.scores = {.experts = 5}},
                                                             Mlp<Relu>{.model_dim = 24, .hidden_dim = 33}}}},
             2},
       12);
  with("wider than a tile",
       Residual{update::Nesterov{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                            GatedMlp<Silu>{.model_dim = 40, .hidden_dim = 72}}},
       33);
}

}  // namespace gatefold::test
