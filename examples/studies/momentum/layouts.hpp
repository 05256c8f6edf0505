#pragma once

#include <memory>
#include <type_traits>

#include "../language/network.hpp"
#include "mixture.hpp"
#include "models.hpp"

namespace studies::momentum {

template <class B>
std::unique_ptr<Model> glam_on(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  const auto model = gatefold::glam_model(lm::sizes(s, vocabulary), rule, mixture(s),
                                          gatefold::Mlp<gatefold::Relu>{.model_dim = s.dim, .hidden_dim = s.hidden});
  return std::make_unique<lm::Network<B, std::remove_const_t<decltype(model)>>>(model, s, vocabulary, seed);
}

template <class B>
std::unique_ptr<Model> reference_on(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  const auto model = gatefold::switch_model<gatefold::language::Reference>(
      lm::sizes(s, vocabulary), rule, mixture(s, gatefold::HiddenDropout{s.dropout, expert(s)}));
  return std::make_unique<lm::Network<B, std::remove_const_t<decltype(model)>>>(model, s, vocabulary, seed);
}

}  // namespace studies::momentum
