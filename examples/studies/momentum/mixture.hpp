#pragma once

#include <gatefold/policies.hpp>

#include "../language/setting.hpp"

namespace studies::momentum {

/// Returns the mixture of the language models in paper 001.
inline auto mixture(const lm::Setting& s) {
  return gatefold::Mixture{
      gatefold::SoftmaxTopK{.scores = {.experts = s.experts}, .selection = {.k = s.k}},
      gatefold::Mlp<gatefold::Relu>{.model_dim = s.dim, .hidden_dim = s.hidden, .initial = s.initial}};
}

}  // namespace studies::momentum
