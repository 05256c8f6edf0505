#pragma once

#include <filesystem>
#include <gatefold/core/types.hpp>
#include <gatefold/core/weights.hpp>
#include <gatefold/layer/summary.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "../training/routing.hpp"
#include "options.hpp"

namespace language {

using Ids = std::vector<Index>;
using Metadata = std::map<std::string, std::string>;  // as in gatefold::io

/// Interface of a language model in training. It hides the update rule, so that the rest of the program is compiled
/// once for all rules.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs one training step and returns the loss before the step. Accumulates the gradients over parts of the batch.
  /// @param x     [N] tokens of whole sequences
  /// @param next  [N] the token after each token of x
  virtual double step(const Ids& x, const Ids& next) = 0;
  virtual Index steps() const = 0;
  /// On the first shard, returns the measurements (ShardRecord) of all shards since the model was made. On other
  /// shards, and if the model is not trained on shards, returns an empty list. All shards must call shards() together.
  virtual std::vector<nlohmann::ordered_json> shards() const = 0;
  virtual Index parameters() const = 0;
  virtual gatefold::Summary summary() const = 0;
  /// Computes the outputs for the tokens x [N] of whole sequences. logits() reads these outputs.
  virtual void read(const Ids& x) = 0;
  /// Returns the routing of each mixture on the tokens [N] of whole sequences.
  virtual std::vector<training::Routing> routing(const Ids& x) = 0;
  /// Makes packed copies of the weights of matrix products in the given form. Inference then reads these copies. Do not
  /// train after this call.
  virtual void freeze(gatefold::Weights form) = 0;
  /// Begins a new text: forgets the tokens that read_on() has read.
  virtual void begin() = 0;
  /// Reads tokens that follow those already read since begin(). Returns the logits [vocabulary] of the next token.
  virtual std::span<const float> read_on(const Ids& x) = 0;
  /// Returns logits [count · vocabulary] for the token after each of the items first … first + count − 1 that read()
  /// has read.
  virtual std::span<const float> logits(Index first, Index count) = 0;

  /// Waits until the previous checkpoint is written. Then starts to write a new checkpoint, and returns, so that
  /// training continues during the writing.
  virtual void save(const std::filesystem::path& path, const Metadata& metadata) = 0;
  /// Blocks until the checkpoint is written.
  virtual void wait() = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// Makes a model with the update rule and the backend of the options.
std::unique_ptr<Model> make_model(const Options& options, Index vocabulary);
/// Makes a model like make_model(), on a GPU. nvcc compiles this function.
std::unique_ptr<Model> make_model_on_cuda(const Options& options, Index vocabulary);

}  // namespace language
