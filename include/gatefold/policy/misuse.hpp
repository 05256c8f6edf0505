#pragma once

#include "gatefold/core/config.hpp"

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

}  // namespace gatefold::policy
