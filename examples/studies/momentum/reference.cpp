#include "../language/network.hpp"
#include "mixture.hpp"
#include "models.hpp"

namespace studies::momentum {

std::unique_ptr<Model> make_reference(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  const auto model = gatefold::switch_model<gatefold::language::Reference>(lm::sizes(s, vocabulary), rule, mixture(s));
  return std::make_unique<lm::Network<std::remove_const_t<decltype(model)>>>(model, s, vocabulary, seed);
}

}  // namespace studies::momentum
