#include "../language/network.hpp"
#include "mixture.hpp"
#include "models.hpp"

namespace studies::momentum {

std::unique_ptr<Model> make_glam(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  const auto model = gatefold::glam_model(lm::sizes(s, vocabulary), rule, mixture(s),
                                          gatefold::Mlp<gatefold::Relu>{.model_dim = s.dim, .hidden_dim = s.hidden});
  return std::make_unique<lm::Network<std::remove_const_t<decltype(model)>>>(model, s, vocabulary, seed);
}

}  // namespace studies::momentum
