#pragma once

#include <concepts>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::policy {

/// Gives a frequent mistake its sentence: no value converts to it, and both compilers print `says` in the error at the
/// caller's own line. As the first parameter of a function overload it answers a call with the wrong arguments, as a
/// member of a struct of options a designator that belongs elsewhere. An overload with it is never usable, so that
/// concepts and `requires` see no function there.
///
///     void step(policy::Misuse<"gatefold: step takes a target too: trainer.step(x, target)">);
///
/// A member needs [[no_unique_address]] and a sentence of its own: two empty members of one type take memory.
template <Sentence says>
struct Misuse {
  Misuse() = default;
  template <class... V>
  Misuse(const V&...) = delete;
};
template <class V>
inline constexpr bool is_misuse = false;
template <Sentence says>
inline constexpr bool is_misuse<Misuse<says>> = true;

/// A part that counts experts: its function `experts()`, or the option `experts` of its scores, for which a gate keeps
/// the name free (ComposedGate). `expert_count` (gate/scores/expert_count.hpp) reads either.
template <class P>
concept CountsExperts = requires(const P part) {
  { part.experts() } -> std::convertible_to<Index>;
}
|| requires(P part) {
  requires is_misuse<decltype(part.experts)>;
  part.scores;
};

}  // namespace gatefold::policy
