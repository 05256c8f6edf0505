#pragma once

#include <gatefold/core/types.hpp>

#include "../language/setting.hpp"
#include "data.hpp"

namespace studies::classification {

using gatefold::Seed;
using lm::Setting;

/// Options of the fine-tuning. The optimizer is Adam with a constant learning rate. Batch size and rate are those of
/// paper 002 for SST-2. The paper has 5 epochs. The dropout rate is that of the paper's code.
struct Tuning {
  Index epochs = 3, batch = 16;
  double lr = 1e-3, dropout = 0.1;

  Json json() const { return {{"epochs", epochs}, {"batch", batch}, {"lr", lr}, {"dropout", dropout}}; }
};

/// Everything that a run reads. All runs of a program share it.
struct Job {
  Setting setting{};  // the language model and its pre-training
  Tuning tuning{};
  Data data{};
};

/// These functions train a classifier. The language model has a gate without mixing in learn_plain, a similarity-aware
/// gate in learn_similarity, and an attention-aware gate in learn_attention. Each function is in a separate file, so
/// that they compile in parallel.
/// @param pretrained  if false, the language model keeps its initial weights, and only the fine-tuning trains it
/// @return `correct`, the number of test sentences that are classified correctly after each epoch; `perplexity` of the
///   validation text before the fine-tuning
Json learn_plain(const Job& job, bool pretrained, Seed seed, const Report& report);
Json learn_similarity(const Job& job, bool pretrained, Seed seed, const Report& report);
Json learn_attention(const Job& job, bool pretrained, Seed seed, const Report& report);

}  // namespace studies::classification
