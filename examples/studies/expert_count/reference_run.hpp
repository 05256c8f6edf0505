#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "setting.hpp"

namespace studies::expert_count {

/// One run of an experiment in the code of Chen et al. 2022 (uclaml/MoE).
struct ReferenceRun {
  Index setting = 1;    // s1 … s4
  bool linear = false;  // true: experts without the cubic activation
  Index train = 16000, test = 16000, epochs = 501;
  std::uint64_t seed = 1;
  std::uint64_t data = 0, start = 0, noise = 0;  // seeds; 0: use `seed`

  Json json(const std::string& model) const {
    Json j{{"model", model}, {"setting", setting}, {"linear", linear}, {"train", train},
           {"test", test},   {"epochs", epochs},   {"seed", seed}};
    for (const auto& [part, other] : {std::pair{"data", data}, {"start", start}, {"noise", noise}})
      if (other != 0) j[part] = other;
    return j;
  }
  double cost() const { return static_cast<double>(train * epochs * 4); }
};

/// Trains a mixture of eight experts like the code of Chen et al. This code differs from the papers in these points:
/// - The weight of a pick is its noisy score.
/// - The loss applies softmax to the two logits twice (TwiceSoftmax).
/// - The gradient of an expert is divided by the sum of two norms, that of its weights and that of its biases.
/// - Experts have biases.
/// - Inputs are ten times as large.
/// - Tests have noise, too.
/// - A loss that is above the smallest loss so far ends training in two cases: it is at most 0.314, or it is more
///   than 0.02 above the smallest loss.
Json train_reference(const ReferenceRun&, const Report&);
/// Trains one network without a gate, with 40 channels per logit, by Adam.
Json train_single(const ReferenceRun&, const Report&);

}  // namespace studies::expert_count
