#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "dataset.hpp"
#include "host.hpp"
#include "network.hpp"

namespace fashion {

/// The results of evaluating a model on a data set.
struct Outcome {
  double accuracy = 0, loss = 0;
  std::vector<std::vector<Index>> picks{};  // [layers][experts]
  /// [layers][experts][classes] the share of the expert in the picks of all items of the class; 0 if there are no picks
  std::vector<std::vector<std::vector<double>>> routing{};
};

/// Returns the share of picks that goes to the busiest expert, for each layer.
inline std::vector<double> busiest_shares(const Outcome& outcome) {
  std::vector<double> shares;
  for (const auto& picks : outcome.picks) shares.push_back(metric::Load{picks}.largest_share());
  return shares;
}

/// Returns the number of items whose largest logit belongs to their label.
inline Index count_correct(const std::vector<float>& logits, const Index* labels) {
  Index correct = 0;
  for (auto row = logits.begin(); row != logits.end(); row += kClasses)
    correct += std::max_element(row, row + kClasses) - row == *labels++;
  return correct;
}

/// Runs the model on the whole `set`. Measures accuracy and loss, and counts the picks of each expert.
template <class C, class L, class P>
Outcome evaluate(C& ctx, const L& model, const P& params, const Dataset& set, const Options& o,
                 const Extra<L, float, typename C::Backend>& extra = {}) {
  using B = typename C::Backend;
  constexpr Index kBatch = 500;
  Outcome outcome;
  Saved<L, float, B> saved;
  Carry<L, float, B> carry;
  Batch<B> batch;
  Tensor<float, 2, B> logits;
  Tensor<float, 1, B> value(1);
  Index correct = 0;
  for (Index first = 0; first < set.count; first += kBatch) {
    const Index count = std::min(kBatch, set.count - first);
    const Index* labels = set.labels.data() + first;
    batch.read(ctx, count, kPixels, set.images.data() + first * kPixels, labels);
    logits.resize(count, kClasses);
    model.begin(ctx, params, count, carry);
    model.forward(ctx, params, batch.images, carry, logits, saved, extra);
    CrossEntropy{}.forward<float, B>(ctx, logits, batch.labels, value);
    outcome.loss += static_cast<double>(to_host(ctx, value)[0]) * static_cast<double>(count);
    correct += count_correct(to_host(ctx, logits), labels);

    std::size_t layer = 0;
    for_each_mixture(saved, [&](const auto& mixture) {
      const auto& plan = mixture.plan;
      if (layer == outcome.picks.size()) {
        outcome.picks.emplace_back(plan.experts(), 0);
        outcome.routing.emplace_back(plan.experts(), std::vector<double>(kClasses, 0.0));
      }
      const std::vector<Index> experts = to_host(ctx, plan.expert), items = to_host(ctx, plan.item);
      for (std::size_t p = 0; p < experts.size(); ++p) {
        const auto e = static_cast<std::size_t>(experts[p]);
        ++outcome.picks[layer][e];
        outcome.routing[layer][e][static_cast<std::size_t>(labels[items[p] / o.tokens()])] += 1;
      }
      ++layer;
    });
  }
  outcome.accuracy = static_cast<double>(correct) / static_cast<double>(set.count);
  outcome.loss /= static_cast<double>(set.count);
  for (auto& layer : outcome.routing)
    for (std::size_t c = 0; c < static_cast<std::size_t>(kClasses); ++c) {
      double total = 0;
      for (auto& expert : layer) total += expert[c];
      for (auto& expert : layer) expert[c] /= std::max(total, 1.0);
    }
  return outcome;
}

}  // namespace fashion
