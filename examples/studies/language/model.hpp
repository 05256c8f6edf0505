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
  double entropy = 0;          // mean entropy of a word's probabilities, before top-K
  std::vector<Index> load{};   // [E] picks of each expert
  std::vector<Index> picks{};  // [N, K] the K experts of each word, best first
  double norm = 0;             // mean over words of ‖u‖
  /// The share [E] of picks whose expert has the output with the largest, second largest, … norm.
  std::vector<double> rank{};
  std::optional<double> on_itself{};  // mean over words of the weight S[i,i], if the gate mixes by similarity
};

/// Compares the output of a mixture with the direction v of multi-objective optimisation (metric::pareto_gap; paper
/// 001, definition 1). All members are means over words.
struct Direction {
  double least = 0;       // ‖v‖, the least norm of a convex combination of the experts' unit vectors
  double normalised = 0;  // norm of the sum of these unit vectors, weighted by the gate
  double cosine = 0;      // cosine of the angle between the mixture's output and v
};

/// Interface of a language model in training. It hides layers and backend, so that the rest of the program is compiled
/// once.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs one training step. x [N] are the words of whole sequences, next [N] is the word after each of them.
  virtual void step(const Ids& x, const Ids& next) = 0;
  /// Returns −log p [N] of each word next[n], which follows the word x[n].
  virtual std::vector<double> surprises(const Ids& x, const Ids& next) = 0;
  /// Returns the routing of each mixture on sequences of N words, in the order of depth.
  virtual std::vector<Routing> routing(const Ids& x) = 0;
  /// Returns the Jacobians ∂u/∂x of each layer at some of the words [N]. The list is empty if the model cannot compute
  /// them.
  virtual std::vector<std::vector<Matrix>> jacobians(const Ids&) { return {}; }
  /// Returns the Direction of each mixture on the words [N]. The list is empty if the model cannot compute it.
  virtual std::vector<Direction> directions(const Ids&) { return {}; }
  /// Returns −log p like surprises(), but each word is predicted from only the words before it. Returns an empty list
  /// if the model cannot compute it.
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
  std::string name;      // characters: a-z 0-9 _ . -
  std::string label;     // name in tables
  std::string baseline;  // name of the case to compare with; can be its own name
  Setting setting;
  std::function<std::unique_ptr<Model>(const Setting&, Seed)> make;
  std::optional<Printed> printed{};
};

/// Cases that one table of the page compares.
struct Group {
  std::string title;
  std::vector<std::string> cases;
};

}  // namespace studies::lm
