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
using Metadata = std::map<std::string, std::string>;  // gatefold::io's

/// A language model in training, whatever its update rule: so that all else is compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// One step on sequences [N], in parts of which each has some of them; returns the loss before it.
  virtual double step(const Ids& x, const Ids& next) = 0;
  virtual Index steps() const = 0;
  /// What each shard has done since the model was made, on the first; all of them ask together. Without shards nothing.
  virtual std::vector<nlohmann::ordered_json> shards() const = 0;
  virtual Index parameters() const = 0;
  virtual gatefold::Summary summary() const = 0;
  /// Read sequences [N], so that logits can be asked for.
  virtual void read(const Ids& x) = 0;
  /// What its mixtures do with sequences [N], whether or not blocks run again in training.
  virtual std::vector<training::Routing> routing(const Ids& x) = 0;
  /// Forget what read_on() has read.
  virtual void begin() = 0;
  /// Read on, after what was read since begin(). Logits of the next token, [vocabulary].
  virtual std::span<const float> read_on(const Ids& x) = 0;
  /// Of the next token after items first … first + count − 1 of what was read, [count · vocabulary].
  virtual std::span<const float> logits(Index first, Index count) = 0;

  /// Begin a checkpoint, which is written while steps go on, after the one before.
  virtual void save(const std::filesystem::path& path, const Metadata& metadata) = 0;
  /// Until it is written.
  virtual void wait() = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// With the rule of options.update, on options.backend.
std::unique_ptr<Model> make_model(const Options& options, Index vocabulary);
/// The latter being on a GPU: compiled by nvcc.
std::unique_ptr<Model> make_model_on_cuda(const Options& options, Index vocabulary);

}  // namespace language
