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

/// What a mixture did with a batch.
struct Routing {
  double entropy = 0;          // mean over words of that of their probabilities, before top-K
  std::vector<Index> load{};   // [E] picks of each expert
  std::vector<Index> picks{};  // [N, K] experts of each word, best first
  double norm = 0;             // mean over words of ‖u‖
  std::vector<double> rank{};  // [E] share of the picks whose expert's output is the largest, the second … by norm
};

/// A language model in training, whatever it is made of and wherever it computes: so that all else is compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// One step on sequences [N].
  virtual void step(const Ids& x, const Ids& next) = 0;
  /// −log p of each word [N] that follows.
  virtual std::vector<double> surprises(const Ids& x, const Ids& next) = 0;
  /// What its mixtures do with sequences [N], in the order of depth.
  virtual std::vector<Routing> routing(const Ids& x) = 0;
  /// ∂u/∂x at some words of sequences [N], layer by layer; none where nobody asks for them.
  virtual std::vector<std::vector<Matrix>> jacobians(const Ids&) { return {}; }
  /// The same where each word is foreseen from those before it alone, what follows them cut off; where anybody asks.
  virtual std::vector<double> surprises_of_prefixes(const Ids&, const Ids&) { return {}; }

  virtual Index parameters() const = 0;
  /// Steps left out, as their loss or gradient was not finite.
  virtual Index skipped() const = 0;
};

/// Test perplexities that a paper printed.
struct Printed {
  double clean = 0, attacked = 0;
};

/// One model of a study.
struct Case {
  std::string name;      // of [a-z0-9_.-]
  std::string label;     // in tables
  std::string baseline;  // the case that it is compared with, or its own name
  Setting setting;
  std::function<std::unique_ptr<Model>(const Setting&, Seed)> make;
  std::optional<Printed> printed{};
};

/// Cases under a heading.
struct Group {
  std::string title;
  std::vector<std::string> cases;
};

}  // namespace studies::lm
