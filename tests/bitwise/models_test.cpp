#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

const Mixture mixture{top_2, Mlp<Silu>{.model_dim = dim, .hidden_dim = 53}};

/// Calls f with compositions of layers whose items do not interact.
template <class F>
void each_model(F&& f) {
  const Residual layer{update::HeavyBall{}, PreNorm{LayerNorm{}, mixture}};
  f("Chain", Chain{Stack{layer, 2}, Residual{update::Plain{}, mixture}, Linear{.model_dim = dim, .output_dim = 11}});
  f("PerToken", Stack{PerToken{3, Residual{update::Nesterov{}, mixture}}, 2});
  f("OneExpert",
    Residual{update::SharpnessAware{.rho = 0.2}, OneExpert{Mlp<Silu>{.model_dim = dim, .hidden_dim = 53}}});
}

}  // namespace

TEST_CASE_TEMPLATE("models: the number of threads changes no bit", T, float, double) {
  each_model([](const std::string& name, const auto& model) {
    CAPTURE(name);
    on_any_threads<T>(model, few, true);
    on_any_threads<T>(model, 500, false);
  });
}

TEST_CASE_TEMPLATE("models: other items of the batch change no bit", T, float, double) {
  each_model([](const std::string& name, const auto& model) {
    CAPTURE(name);
    in_any_batch<T>(model);
  });
}
