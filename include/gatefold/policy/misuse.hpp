#pragma once

#include <concepts>

#include "gatefold/core/types.hpp"

namespace gatefold::detail_::policy {

/// Explains a frequent mistake at compile time. No value converts to a Misuse, so a call that needs one does not
/// compile. The error of the compiler, at the line of the caller, contains the text `says`. Use it in two places:
///
/// - as the first parameter of a function overload, to report a call with wrong arguments;
/// - as a member of a struct of options, to report an option that belongs to another struct.
///
/// An overload with a Misuse is not callable with any argument except {}, so concepts and `requires` treat the call as
/// invalid.
///
///     void step(detail_::policy::Misuse<"gatefold: step takes a target too: trainer.step(x, target)">);
///
/// A member needs [[no_unique_address]], and each member of a struct needs a different text. Two empty members of the
/// same type would need two addresses, and therefore memory.
template <detail_::Sentence says>
struct Misuse {
  static constexpr bool is_misuse = true;
  Misuse() = default;
  template <class... V>
  Misuse(const V&...) = delete;
};

/// True for a part of a model with a function `experts()`, which returns the number of experts.
template <class P>
concept HasExperts = requires(const P part) {
  { part.experts() } -> std::convertible_to<Index>;
};
/// True for a gate (ComposedGate) whose number of experts is an option of its scores, the part of a gate that computes
/// a number for each expert. The member `experts` of the gate itself is a Misuse, which reports a wrong use at compile
/// time.
template <class P>
concept HasExpertsOfScores = requires(const P part) {
  part.experts.is_misuse;
  part.scores;
};
/// True for a part or gate that has a number of experts (HasExperts or HasExpertsOfScores). `count_experts`
/// (gate/gate.hpp) returns this number.
template <class P>
concept CountsExperts = HasExperts<P> || HasExpertsOfScores<P>;

}  // namespace gatefold::detail_::policy
