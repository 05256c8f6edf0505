#pragma once

#include <concepts>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::policy {

/// Gives a frequent mistake its sentence: no value converts to it, and both compilers print `says` in the error at the
/// caller's own line. As the first parameter of a function overload it answers a call with the wrong arguments, as a
/// member of a struct of options a designator that belongs elsewhere. An overload with it is never usable, so that
/// concepts and `requires` see no function there.
///
///     void step(detail_::policy::Misuse<"gatefold: step takes a target too: trainer.step(x, target)">);
///
/// A member needs [[no_unique_address]] and a sentence of its own: two empty members of one type take memory.
template <detail_::Sentence says>
struct Misuse {
  static constexpr bool is_misuse = true;
  Misuse() = default;
  template <class... V>
  Misuse(const V&...) = delete;
};

/// A part that counts experts by its function `experts()`.
template <class P>
concept HasExperts = requires(const P part) {
  { part.experts() } -> std::convertible_to<Index>;
};
/// A gate whose number of experts is the option `experts` of its scores (ComposedGate). Its own `experts` is a Misuse.
template <class P>
concept HasExpertsOfScores = requires(const P part) {
  part.experts.is_misuse;
  part.scores;
};
/// Either; `count_experts` (gate/scores/count_experts.hpp) returns the number.
template <class P>
concept CountsExperts = HasExperts<P> || HasExpertsOfScores<P>;

}  // namespace gatefold::detail_::policy
