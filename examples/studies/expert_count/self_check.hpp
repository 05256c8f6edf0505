#pragma once

namespace studies::expert_count {

/// Check what is this program's own: a loss against finite differences, a selection by the library's conformance suite
/// and against NoisyTop1, routing probabilities against closed forms, lemma 1's bound with noise and without. Prints
/// what it did.
/// @throws std::runtime_error where something is off
void self_check();

}  // namespace studies::expert_count
