#include "network.hpp"

namespace images {

std::unique_ptr<Model> make_model(const Options& o) {
  if (o.update == "robust") return make_robust(o);
  if (o.router == "similarity") return make_similar(o);
  if (o.router == "attention") return make_attending(o);
  if (o.router == "soft") return make_soft(o);
  return make_vmoe(o);
}

std::unique_ptr<Model> make_linear(const Options& o) {
  return network(o, [](bool) { return Linear{.model_dim = kPixels, .output_dim = kClasses}; });
}

}  // namespace images
