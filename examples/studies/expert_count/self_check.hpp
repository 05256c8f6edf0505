#pragma once

namespace studies::expert_count {

/// Checks the parts of this program that are not in the library, and prints each check:
/// - the gradient of the loss against finite differences,
/// - the selection by the library's conformance suite and against NoisyTop1,
/// - the routing probabilities against closed forms,
/// - the bound of Lemma 1 with noise and without.
///
/// @throws std::runtime_error if a check fails
void self_check();

}  // namespace studies::expert_count
