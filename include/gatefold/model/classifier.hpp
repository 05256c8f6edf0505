#pragma once

#include <vector>

#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/one_expert.hpp"

namespace gatefold {

/// Returns a model that classifies sequences: a language model with a classification head, for fine-tuning. It computes
/// logits y of the classes from the output x of the language model for each item. Only those of the last item of a
/// sequence count.
///
///     f = x W + b,   y = dropout(f) V + c                                                               (1)
///
/// Source: the code of papers 001 and 002 on SST-2, SST-5 and Banking-77. The language model is the first layer of the
/// chain, so assign its pre-trained parameters to `std::get<0>(params.layers)`. The labels of `labels_of_last` fit the
/// loss `CrossEntropy{.ignore = -1}`. The papers' code applies the softmax twice, as
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
