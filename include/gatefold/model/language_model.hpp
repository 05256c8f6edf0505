#pragma once

#include <vector>

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/relative_keys.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/skip.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/update/plain.hpp"

/// The language models of papers 001 and 002, as compositions of layers. The input of a model is token ids [N]. Its
/// output [N, D] is the input of the output layer, which computes logits and is a part of the loss
/// (StreamedCrossEntropy).
///
///     const auto sizes = LanguageSizes::medium();
///     const auto model = switch_model(sizes, update::HeavyBall{.mu = 0.7}, Mixture{gate, Mlp<Relu>{352, 352}});
///     Trainer trainer{ctx, model, sizes.loss(), optim::AdamW{.lr = 7e-4, .decay = 0}, Seed{1}};
///
/// The models are ordinary layers. Momentum goes from mixture to mixture: attention and dense layers neither read nor
/// write it (paper 001, App. D.1).
namespace gatefold {

/// The sizes and options of a language model, except its mixtures.
///
/// Source: papers 001 and 002 on WikiText-103 and their code. The mixtures of the code pick 2 of 16 experts, with a
/// hidden width equal to model_dim. The code uses one dropout rate in three places: attention probabilities, outputs of
/// mixtures, and hidden values of experts in mixtures and dense layers. The option `dropout` covers the first two
/// places. For hidden values, write `HiddenDropout{sizes.dropout, Mlp<Relu>{…}}` instead of the `Mlp`.
struct LanguageSizes {
  Index vocabulary = 0, model_dim = 0, heads = 8;
  Index window = 0;    // number of keys in the window of attention; in language::Traced, the largest sequence length
  Index depth = 0;     // number of layers; in glam_model, number of pairs of layers
  double dropout = 0;  // dropout rate for attention probabilities (not in language::Traced) and outputs of mixtures
  bool tied = false;   // whether the output layer uses the weights of the embedding
  bool sparse = true;  // true: sparse gradient of the embedding; false: Adam also steps unused rows, as in papers
  Initial embedding = Initial::normal(1);

  static constexpr Index wikitext_103 = 267735;
  static LanguageSizes small(Index vocabulary = wikitext_103) { return {vocabulary, 128, 8, 256, 3, 0.7}; }
  static LanguageSizes medium(Index vocabulary = wikitext_103) { return {vocabulary, 352, 8, 1024, 6, 0.1}; }
  static LanguageSizes large(Index vocabulary = wikitext_103) { return {vocabulary, 512, 8, 2048, 12, 0.1}; }
  static LanguageSizes glam_medium(Index vocabulary = wikitext_103) { return {vocabulary, 352, 8, 2048, 6, 0.1}; }

  Index head_dim() const {
    expect(heads >= 1, "LanguageSizes", "heads", "at least 1", heads);
    return model_dim / heads;
  }
  /// Returns the loss, which consists of the output layer and its cross-entropy.
  StreamedCrossEntropy loss() const { return {.vocabulary = vocabulary, .model_dim = model_dim, .tied = tied}; }
};

/// Variants of a language model, which differ in the positions of the norms and in the attention.
namespace language {

/// The default variant of a language model: a norm before each attention and each mixture, as in the equation of the
/// papers, and one norm after the last layer. Attention has a window with position keys, which all layers share. The
/// carry is the state of the update rule, for example momentum.
///
///     h = x + attention(norm(x)),   y, carry ← rule(h, carry; mixture ∘ norm)                           (1)
struct PreNormed {
  static RelativeAttention attention(const LanguageSizes& s) { return {s.model_dim, s.heads, s.window, s.dropout}; }
  static auto attention_layer(const LanguageSizes& s) {
    return Residual{update::Plain{}, PreNorm{LayerNorm{}, attention(s)}};
  }
  template <class RuleT, class BranchT>
  static auto mixture_layer(const RuleT& rule, const BranchT& branch) {
    return Residual{rule, PreNorm{LayerNorm{}, branch}};
  }
  template <class RuleT, class BranchT>
  static auto layer(const LanguageSizes& s, const RuleT& rule, const BranchT& branch) {
    return Chain{attention_layer(s), mixture_layer(rule, branch)};
  }
  template <class BranchT>
  static auto dense_layer(const LanguageSizes& s, const BranchT& branch) {
    return layer(s, update::Plain{}, branch);
  }
  template <class LayersT>
  static auto model(const LanguageSizes& s, const Embedding& embedding, const LayersT& layers) {
    return Chain{embedding, RelativeKeys{s.window, s.head_dim(), layers}, LayerNorm{s.model_dim}};
  }
};

/// A variant of a language model for AttentionAware gates, with the norms of PreNormed. Each item attends to itself and
/// to all earlier items of its sequence. The attention passes its tensors (the attention trace) to the gate. It does
/// not encode positions, so the embedding adds a learned row for each position.
struct Traced {
  template <class RuleT, class BranchT>
  static auto layer(const LanguageSizes& s, const RuleT& rule, const BranchT& branch) {
    return Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = s.model_dim, .heads = s.heads}}},
                 Residual{rule, PreNorm{LayerNorm{}, branch}}};
  }
  template <class BranchT>
  static auto dense_layer(const LanguageSizes& s, const BranchT& branch) {
    return layer(s, update::Plain{}, branch);
  }
  template <class LayersT>
  static auto model(const LanguageSizes& s, Embedding embedding, const LayersT& layers) {
    embedding.places = s.window;
    return Chain{embedding, layers, LayerNorm{s.model_dim}};
  }
};

/// A variant of a language model with the layers of the papers' code (reference_layer): norms follow residual
/// connections, and a mixture has two norms. An item does not attend to itself. The code subtracts momentum, as
/// `update::HeavyBall{.mu = 0.7, .gamma = -1}` does. The attention window of a new text begins with rows of zeros
/// (SegmentMemory::begin).
///
///     dense:   h₁ = LN₁(x + attention(x)),   y = LN₂(h₁ + mlp(h₁))                                      (2)
struct Reference {
  static RelativeAttention attention(const LanguageSizes& s) {
    return RelativeAttention::reference({s.model_dim, s.heads, s.window, s.dropout});
  }
  static auto attention_layer(const LanguageSizes& s) { return reference_attention_layer(attention(s)); }
  template <class RuleT, class BranchT>
  static auto mixture_layer(const RuleT& rule, const BranchT& branch) {
    return reference_mixture_layer(rule, branch);
  }
  template <class RuleT, class BranchT>
  static auto layer(const LanguageSizes& s, const RuleT& rule, const BranchT& branch) {
    return reference_layer(attention(s), rule, branch);
  }
  template <class BranchT>
  static auto dense_layer(const LanguageSizes& s, const BranchT& branch) {
    return Chain{attention_layer(s), PostNorm{Residual{update::Plain{}, branch}, LayerNorm{}}};
  }
  template <class LayersT>
  static auto model(const LanguageSizes& s, const Embedding& embedding, const LayersT& layers) {
    return Chain{embedding, RelativeKeys{s.window, s.head_dim(), layers}};
  }
};

/// A variant of a language model for AttentionAware gates, as papers 001 and 002 build their models. It is FormT
/// (PreNormed or Reference) with windowed attention that also passes its tensors (the attention trace) to the gate.
/// Dense layers are the same as in FormT. The memory of this attention must contain items, not keys and values, also in
/// `infer`.
template <class FormT>
struct WithTrace : FormT {
  template <class RuleT, class BranchT>
  static auto layer(const LanguageSizes& s, const RuleT& rule, const BranchT& branch) {
    return Block{FormT::attention_layer(s), FormT::mixture_layer(rule, branch)};
  }
};

/// Returns a model with an embedding, `depth` copies of `layer`, and the other layers of the variant FormT, for example
/// a last norm.
template <class FormT, class LayerT>
auto model_of(const LanguageSizes& s, const LayerT& layer) {
  const Embedding embedding{
      .vocabulary = s.vocabulary, .model_dim = s.model_dim, .sparse = s.sparse, .initial = s.embedding};
  return FormT::model(s, embedding, Stack{layer, s.depth});
}

}  // namespace language

/// Returns a language model with a mixture in every layer (Switch Transformer).
///
///     x₀ = embedding(ids),   x_l, carry ← layer_l(x_{l−1}, carry),   y = norm(x_depth)                  (3)
///
/// Source: Fedus et al. 2021, arXiv:2101.03961 (Switch), in the form of papers 001 and 002.
/// @param rule  the update rule around each mixture
/// @param mixture  a branch, for example `Mixture{gate, expert}`
template <class FormT = language::PreNormed, class RuleT, class MixtureT>
auto switch_model(const LanguageSizes& sizes, const RuleT& rule, const MixtureT& mixture) {
  return language::model_of<FormT>(sizes, FormT::layer(sizes, rule, Dropout{sizes.dropout, mixture}));
}

/// Returns a language model with a mixture in every second layer (GLaM). It has `depth` pairs of layers: the first
/// layer of a pair has a mixture, the second a dense expert.
///
/// Source: Du et al. 2022, arXiv:2112.06905 (GLaM), in the order of the code of papers 001 and 002, mixture first.
/// @param feed_forward  the expert of the dense layers, for example `Mlp<Relu>`. These layers are residual layers that
///                      do not use the carry
template <class FormT = language::PreNormed, class RuleT, class MixtureT, class ExpertT>
auto glam_model(const LanguageSizes& sizes, const RuleT& rule, const MixtureT& mixture, const ExpertT& feed_forward) {
  return language::model_of<FormT>(sizes, Chain{FormT::layer(sizes, rule, Dropout{sizes.dropout, mixture}),
                                                FormT::dense_layer(sizes, OneExpert{feed_forward})});
}

/// Returns a model that classifies sequences: a language model with a classification head, for fine-tuning. It computes
/// logits y of the classes from the output x of the language model for each item. Only the logits of the last item of a
/// sequence count.
///
///     f = x W + b,   y = dropout(f) V + c                                                               (1)
///
/// Source: the code of papers 001 and 002 on SST-2, SST-5 and Banking-77. The language model is the first layer of the
/// chain, so assign its pre-trained parameters to `std::get<0>(params.layers)`. Use the labels of `labels_of_last` with
/// the loss `CrossEntropy{.ignore = -1}`. The papers' code applies the softmax twice, as
/// `CrossEntropy::reference({.ignore = -1})` does. Pad sequences on the left, because the last item must not be
/// padding. Steps of a Trainer must pass noise, unless dropout is 0.
/// @throws ArgumentError unless classes >= 1
auto classifier(const auto& model, Index classes, double dropout = 0.1) {
  expect(classes >= 1, "classifier", "classes", "at least 1", classes);
  const Index dim = model.out_dim();
  return Chain{model, Dropout{dropout, OneExpert{Linear{.model_dim = dim, .output_dim = dim}}},
               Linear{.model_dim = dim, .output_dim = classes}};
}

/// Returns one label per item from one label per sequence. The last item of a sequence gets the label of the sequence,
/// and all other items get `ignore`.
///
///     to[g L + l] = labels[g] if l = L − 1, else ignore                                                 (2)
///
/// @throws ArgumentError unless length >= 1
inline std::vector<Index> labels_of_last(const std::vector<Index>& labels, Index length, Index ignore = -1) {
  expect(length >= 1, "labels_of_last", "length", "at least 1", length);
  const auto step = static_cast<std::size_t>(length);
  std::vector<Index> to(labels.size() * step, ignore);
  for (std::size_t g = 0; g < labels.size(); ++g) to[g * step + step - 1] = labels[g];
  return to;
}

}  // namespace gatefold
