#pragma once

#include <functional>
#include <gatefold/core/types.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "setting.hpp"

namespace studies::lm {

using gatefold::Seed;
using Ids = std::vector<Index>;
using Matrix = std::vector<float>;  // [D · D]

/// The routing of a mixture on a batch.
struct Routing {
  double entropy = 0;          // mean over words of the entropy of their probabilities, before top-K
  std::vector<Index> load{};   // [E] picks of each expert
  std::vector<Index> picks{};  // [N, K] experts of each word, best first
  double norm = 0;             // mean over words of ‖u‖
  std::vector<double> rank{};  // [E] share of the picks whose expert's output has the largest, the second … norm
};

/// Interface of a language model in training, for any layers and any backend. The rest of the program is compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs one training step on sequences [N].
  virtual void step(const Ids& x, const Ids& next) = 0;
  /// Returns −log p of the word after each word [N].
  virtual std::vector<double> surprises(const Ids& x, const Ids& next) = 0;
  /// Returns the routing of the model's mixtures on sequences [N], in the order of depth.
  virtual std::vector<Routing> routing(const Ids& x) = 0;
  /// Returns ∂u/∂x at some words of sequences [N], layer by layer. Empty if the model does not offer them.
  virtual std::vector<std::vector<Matrix>> jacobians(const Ids&) { return {}; }
  /// Like surprises(), but each word is predicted only from the words before it; the words after it are cut off. Empty
  /// if the model does not offer them.
  virtual std::vector<double> surprises_of_prefixes(const Ids&, const Ids&) { return {}; }

  virtual Index parameters() const = 0;
  /// Returns the number of steps that were skipped because their loss or gradient was not finite.
  virtual Index skipped() const = 0;
};

/// Test perplexities printed in a paper.
struct Printed {
  double clean = 0, attacked = 0;
};

/// One model of a study.
struct Case {
  std::string name;      // of [a-z0-9_.-]
  std::string label;     // in tables
  std::string baseline;  // name of the case that it is compared with, or its own name
  Setting setting;
  std::function<std::unique_ptr<Model>(const Setting&, Seed)> make;
  std::optional<Printed> printed{};
};

/// Cases under one heading.
struct Group {
  std::string title;
  std::vector<std::string> cases;
};

}  // namespace studies::lm
