#pragma once

#include <gatefold/policies.hpp>

#include "../language/setting.hpp"

namespace studies::momentum {

/// These functions return the parts of the language models in paper 001. The first returns an expert. The other two
/// return a mixture of the given experts, or of the experts of the first function.
inline auto expert(const lm::Setting& s) {
  return gatefold::Mlp<gatefold::Relu>{.model_dim = s.dim, .hidden_dim = s.hidden, .initial = s.initial};
}
template <class ExpertT>
auto mixture(const lm::Setting& s, const ExpertT& expert) {
  return gatefold::Mixture{gatefold::SoftmaxTopK{.scores = {.experts = s.experts}, .selection = {.k = s.k}}, expert};
}
inline auto mixture(const lm::Setting& s) { return mixture(s, expert(s)); }

}  // namespace studies::momentum
