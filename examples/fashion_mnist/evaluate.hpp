#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "dataset.hpp"
#include "network.hpp"

namespace fashion {

/// What a pass over a data set shows.
struct Outcome {
  double accuracy = 0, loss = 0;
  std::vector<std::vector<Index>> picks{};                 // [layers][experts]
  std::vector<std::vector<std::vector<double>>> routing{};  // [layers][experts][classes] share of the class's picks
};

/// The classes of the largest logits that agree with the labels.
template <class V>
Index count_correct(const V& logits, const Index* labels) {
  Index correct = 0;
  for (Index n = 0; n < logits.extent(0); ++n) {
    const float* row = &logits(n, 0);
    correct += std::max_element(row, row + logits.extent(1)) - row == labels[n];
  }
  return correct;
}

/// Run the layer over all of `set`, and count who went where.
template <class L, class P>
Outcome evaluate(Cpu::Context& ctx, const L& model, const P& params, const Dataset& set, const Options& o,
                 const Extra<L, float, Cpu>& extra = {}) {
  constexpr Index kBatch = 500;
  Outcome outcome;
  Saved<L, float, Cpu> saved;
  Carry<L, float, Cpu> carry;
  Tensor<float, 2, Cpu> logits;
  Tensor<float, 1, Cpu> value(1);
  Index correct = 0;
  for (Index first = 0; first < set.count; first += kBatch) {
    const Index count = std::min(kBatch, set.count - first);
    const View<const float, 2, Cpu> x(set.images.data() + first * kPixels, count, kPixels);
    const View<const Index, 1, Cpu> labels(set.labels.data() + first, count);
    logits.resize(count, kClasses);
    model.begin(ctx, params, count, carry);
    model.forward(ctx, params, x, carry, logits, saved, extra);
    CrossEntropy{}.forward<float, Cpu>(ctx, logits, labels, value);
    outcome.loss += static_cast<double>(value(0)) * static_cast<double>(count);
    correct += count_correct(logits.view(), labels.data());

    std::size_t layer = 0;
    for_each_mixture(saved, [&](const auto& mixture) {
      const auto& plan = mixture.plan;
      if (layer == outcome.picks.size()) {
        outcome.picks.emplace_back(plan.experts(), 0);
        outcome.routing.emplace_back(plan.experts(), std::vector<double>(kClasses, 0.0));
      }
      for (Index p = 0; p < plan.expert.size(); ++p) {
        const auto e = static_cast<std::size_t>(plan.expert(p));
        ++outcome.picks[layer][e];
        outcome.routing[layer][e][static_cast<std::size_t>(labels(plan.item(p) / o.tokens()))] += 1;
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
