#pragma once

namespace studies::expert_count {

/// Checks the parts that only this program has, and prints what it did:
/// - the loss against finite differences,
/// - the selection by the library's conformance suite and against NoisyTop1,
/// - routing probabilities against closed forms,
/// - lemma 1's bound with noise and without.
///
/// @throws std::runtime_error if a check fails
void self_check();

}  // namespace studies::expert_count
