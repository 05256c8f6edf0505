#pragma once

#include <filesystem>
#include <gatefold/core/types.hpp>
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

/// Interface of a language model in training, for any update rule. The rest of the program is compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs one training step on sequences [N], accumulated over parts of the batch. Returns the loss before the step.
  virtual double step(const Ids& x, const Ids& next) = 0;
  virtual Index steps() const = 0;
  /// Returns the records of all shards since the model was made, on the first shard. All shards must call it together.
  /// Empty without shards.
  virtual std::vector<nlohmann::ordered_json> shards() const = 0;
  virtual Index parameters() const = 0;
  virtual gatefold::Summary summary() const = 0;
  /// Computes the outputs of sequences [N], from which logits() reads.
  virtual void read(const Ids& x) = 0;
  /// Returns the routing of the model's mixtures on sequences [N], whether or not training recomputes blocks.
  virtual std::vector<training::Routing> routing(const Ids& x) = 0;
  /// Discards the tokens that read_on() has read.
  virtual void begin() = 0;
  /// Reads further tokens, after those read since begin(). Returns the logits of the next token, [vocabulary].
  virtual std::span<const float> read_on(const Ids& x) = 0;
  /// Returns the logits of the token after each of the items first … first + count − 1 that were read, [count ·
  /// vocabulary].
  virtual std::span<const float> logits(Index first, Index count) = 0;

  /// Starts to write a checkpoint while training continues, after the previous checkpoint is written.
  virtual void save(const std::filesystem::path& path, const Metadata& metadata) = 0;
  /// Blocks until the checkpoint is written.
  virtual void wait() = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// Makes a model with the rule of options.update, on options.backend.
std::unique_ptr<Model> make_model(const Options& options, Index vocabulary);
/// Like make_model, on a GPU. nvcc compiles it.
std::unique_ptr<Model> make_model_on_cuda(const Options& options, Index vocabulary);

}  // namespace language
