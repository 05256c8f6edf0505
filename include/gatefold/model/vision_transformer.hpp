#pragma once

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/image_patches.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/normed_point.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/position_embedding.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/token_mean.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/robust.hpp"

/// The vision transformers of papers 001 and 002, as compositions of layers. The input of a model is images
/// [N, side · side · channels], and the output logits [N, classes].
///
///     const auto sizes = VisionSizes::small_32();
///     const Mlp<Gelu> mlp{512, 2048};
///     const Mixture mixture{published::vmoe({.experts = 8}), mlp};
///     const auto model = vmoe_last(sizes, update::HeavyBall{.mu = 0.7}, mixture, mlp, 2);
///     Trainer trainer{ctx, model, CrossEntropy{}, optim::AdamW{.lr = 1e-3}, Seed{1}};
///
/// Attention and gates treat each image as one sequence. Momentum goes from mixture to mixture.
namespace gatefold {

/// The sizes and options of a vision transformer, except its layers.
///
/// Source: Riquelme et al. 2021, arXiv:2106.05974 (V-MoE S/32), Touvron et al. 2021, arXiv:2012.12877 (DeiT tiny, the
/// base of paper 001's Soft MoE).
struct VisionSizes {
  Index side = 28, channels = 1, patch = 4;  // side of a square image and side of a patch, in pixels
  Index model_dim = 0, heads = 1, depth = 0;
  Index classes = 10;
  bool class_token = true;         // if true, the head reads a class token; otherwise, the mean of the tokens
  double dropout = 0;              // dropout rate for the outputs of mixtures and dense experts
  double mean = 0, deviation = 1;  // mean and standard deviation of the pixels, for their normalisation
  double epsilon = 1e-6;           // epsilon of the layer norms

  static VisionSizes small_32(Index classes = 1000) { return {224, 3, 32, 512, 8, 8, classes}; }
  static VisionSizes tiny_16(Index classes = 1000) { return {224, 3, 16, 192, 3, 12, classes}; }

  ImagePatches patches() const {
    const ImagePatches p{side, side, channels, patch, mean, deviation};
    p.expect_options();
    return p;
  }
  PositionEmbedding places() const { return {patches().patches(), model_dim, class_token}; }
  Attention attention() const { return {.model_dim = model_dim, .heads = heads, .causal = false}; }
  LayerNorm norm() const { return {model_dim, epsilon}; }
};

/// Variants of a layer of a vision transformer, which differ in the positions of the norms and in the attention.
namespace vision {

/// The default variant of a layer of a vision transformer: a norm before the attention and before the mixture or dense
/// expert (the branch), as in the equation of the papers. The carry is the state of the update rule, for example
/// momentum.
///
///     h = x + attention(norm(x)),   y, carry ← rule(h, carry; branch ∘ norm)                            (1)
struct PreNormed {
  template <class RuleT, class BranchT>
  static auto layer(const VisionSizes& s, const RuleT& rule, const BranchT& branch) {
    return Chain{Residual{update::Plain{}, PreNorm{s.norm(), s.attention()}},
                 Residual{rule, PreNorm{s.norm(), branch}}};
  }
  template <class RuleT, class BranchT>
  static auto dense_layer(const VisionSizes& s, const RuleT&, const BranchT& branch) {
    return layer(s, update::Plain{}, branch);
  }
};

/// A variant of a layer of a vision transformer for AttentionAware gates: PreNormed, with attention that passes its
/// tensors (the attention trace) to the gate.
struct Traced {
  template <class RuleT, class BranchT>
  static auto layer(const VisionSizes& s, const RuleT& rule, const BranchT& branch) {
    return Block{Residual{update::Plain{}, PreNorm{s.norm(), s.attention()}},
                 Residual{rule, PreNorm{s.norm(), branch}}};
  }
  template <class RuleT, class BranchT>
  static auto dense_layer(const VisionSizes& s, const RuleT&, const BranchT& branch) {
    return layer(s, update::Plain{}, branch);
  }
};

/// A layer of a vision transformer as in the published code of MomentumSMoE (paper 001). A second norm follows the
/// residual connection. A rule that evaluates its branch at a look-ahead point computes this point from the normalised
/// items, also in dense layers.
///
///     h = x + attention(norm(x)),   z, carry ← h + (rule(norm(h), carry; branch) − norm(h)),   y = norm(z)   (2)
///
/// The published code subtracts the outputs of mixtures. This is equivalent, because the last weights of the experts
/// learn the opposite sign.
struct Reference {
  template <class RuleT, class BranchT>
  static auto layer(const VisionSizes& s, const RuleT& rule, const BranchT& branch) {
    return Chain{Residual{update::Plain{}, PreNorm{s.norm(), s.attention()}},
                 PostNorm{NormedPoint{s.norm(), Residual{rule, branch}}, s.norm()}};
  }
  template <class RuleT, class BranchT>
  static auto dense_layer(const VisionSizes& s, const RuleT& rule, const BranchT& branch) {
    return layer(s, beside(rule), branch);
  }

 private:
  static update::Plain beside(const auto&) { return {}; }
  static update::PlainAhead beside(const update::Robust& rule) { return {rule}; }
};

}  // namespace vision

/// Returns a vision transformer with the given layers over its tokens.
///
///     x₀ = (class token, patches · W + b) + positions,   y = head(norm(layers(x₀)))                     (3)
///
/// The head reads the class token, or the mean of the tokens.
/// Source: Dosovitskiy et al. 2021, arXiv:2010.11929, eqs. (1), (4).
/// @param layers  a layer of items [N, model_dim], in which each sequence is an image
/// @throws ArgumentError unless classes >= 1
auto vision_transformer(const VisionSizes& s, const auto& layers) {
  expect(s.classes >= 1, "vision_transformer", "classes", "at least 1", s.classes);
  const ImagePatches patches = s.patches();
  const PositionEmbedding places = s.places();
  return Chain{patches,
               PerToken{places.tokens, Linear{.model_dim = patches.patch_dim(), .output_dim = s.model_dim}},
               places,
               PerToken{places.length(), Chain{layers, s.norm()}},
               TokenMean{places.length(), s.model_dim, s.class_token ? 1 : 0},
               Linear{.model_dim = s.model_dim, .output_dim = s.classes}};
}

namespace vision {

/// Returns a chain of two layers. If both layers are chains, the layers of these chains are joined into one chain, so
/// that all layers use the same carry (the state of the update rule).
template <class FirstT, class SecondT>
auto pair_of(const FirstT& first, const SecondT& second) {
  return Chain{first, second};
}
template <class... A, class... B>
auto pair_of(const Chain<A...>& first, const Chain<B...>& second) {
  return joined_chain(first, second);
}

/// Makes the layers of a V-MoE model: a layer with a mixture, a layer with a dense expert, or a pair of both.
template <class FormT, class RuleT, class MixtureT, class ExpertT>
struct Layers {
  const VisionSizes& sizes;
  const RuleT& rule;
  const MixtureT& mixture;
  const ExpertT& feed_forward;

  auto mixed() const { return FormT::layer(sizes, rule, Dropout{sizes.dropout, mixture}); }
  auto dense() const { return FormT::dense_layer(sizes, rule, Dropout{sizes.dropout, OneExpert{feed_forward}}); }
  auto pair() const { return pair_of(dense(), mixed()); }
};

}  // namespace vision

/// Returns the vision transformer V-MoE "every 2", with a mixture in every second layer, including the last one.
///
/// Source: Riquelme et al. 2021, arXiv:2106.05974, with the mixtures at the positions that V-MoE's code uses.
/// @param rule  the update rule around each mixture
/// @param mixture  a branch, for example `Mixture{gate, expert}`
/// @param feed_forward  the expert of the layers without a mixture
/// @throws ArgumentError unless depth is even
template <class FormT = vision::PreNormed, class RuleT, class MixtureT, class ExpertT>
auto vmoe_every_2(const VisionSizes& s, const RuleT& rule, const MixtureT& mixture, const ExpertT& feed_forward) {
  expect(s.depth % 2 == 0, "vmoe_every_2", "depth", "an even number", s.depth);
  return vision_transformer(
      s, Stack{vision::Layers<FormT, RuleT, MixtureT, ExpertT>{s, rule, mixture, feed_forward}.pair(), s.depth / 2});
}

/// Returns the vision transformer V-MoE "last n": of the layers 2, 4, 6, …, only the last n have a mixture. For
/// example, with n = 2 and 8 layers, the sixth and the eighth layer have a mixture.
///
/// @throws ArgumentError unless n >= 1, depth is even and above 2 n
template <class FormT = vision::PreNormed, class RuleT, class MixtureT, class ExpertT>
auto vmoe_last(const VisionSizes& s, const RuleT& rule, const MixtureT& mixture, const ExpertT& feed_forward,
               Index n = 2) {
  expect(n >= 1, "vmoe_last", "n", "at least 1", n);
  expect(s.depth % 2 == 0 && s.depth > 2 * n, "vmoe_last", "depth", Joined{"an even number above ", 2 * n}, s.depth);
  const vision::Layers<FormT, RuleT, MixtureT, ExpertT> of{s, rule, mixture, feed_forward};
  return vision_transformer(s, Chain{Stack{of.dense(), s.depth - 2 * n}, Stack{of.pair(), n}});
}

/// Returns the model of Soft MoE, which has a mixture in each layer of the second half, for example
/// `Mixture{SoftMoe{.count = 128}, Mlp<Gelu>{…}}`.
///
/// Source: Puigcerver et al. 2023, arXiv:2308.00951.
/// @throws ArgumentError unless depth is even
template <class FormT = vision::PreNormed, class RuleT, class MixtureT, class ExpertT>
auto soft_moe_model(const VisionSizes& s, const RuleT& rule, const MixtureT& mixture, const ExpertT& feed_forward) {
  expect(s.depth % 2 == 0, "soft_moe_model", "depth", "an even number", s.depth);
  const vision::Layers<FormT, RuleT, MixtureT, ExpertT> of{s, rule, mixture, feed_forward};
  return vision_transformer(s, Chain{Stack{of.dense(), s.depth / 2}, Stack{of.mixed(), s.depth / 2}});
}

}  // namespace gatefold
