#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

/// Experts of single items, of a width that no register divides; wide ones have more than one block of depth.
template <class F>
void each_expert(F&& f) {
  f("Linear", Linear{.model_dim = dim, .output_dim = 11});
  f("Mlp, ReLU", Mlp<Relu>{.model_dim = dim, .hidden_dim = 53});
  f("Mlp, GELU", Mlp<Gelu>{.model_dim = dim, .hidden_dim = 53});
  f("Mlp, tanh GELU", Mlp<GeluTanh>{.model_dim = dim, .hidden_dim = 53});
  f("Mlp, cubic", Mlp<Cubic>{.model_dim = dim, .hidden_dim = 53});
  f("GatedMlp, SiLU", GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 53});
  f("NormExpert", NormExpert{.model_dim = dim});
  f("Experts", Experts<Mlp<Relu>, Linear>{.kinds = {Mlp<Relu>{dim, 53}, Linear{.model_dim = dim}}, .counts = {2, 3}});
}

}  // namespace

TEST_CASE_TEMPLATE("experts: any threads", T, float, double) {
  each_expert([](const std::string& name, const auto& expert) {
    CAPTURE(name);
    on_any_threads<T>(Mixture{top_2, expert}, few, true);
    on_any_threads<T>(Mixture{top_2, expert}, 1000, false);
  });
}

TEST_CASE_TEMPLATE("experts: alone and in any batch", T, float, double) {
  each_expert([](const std::string& name, const auto& expert) {
    CAPTURE(name);
    in_any_batch<T>(Mixture{top_2, expert});
  });
}

TEST_CASE_TEMPLATE("wide experts: any threads, alone and in any batch", T, float, double) {
  const Mixture mixture{top_2, Mlp<Relu>{.model_dim = 300, .hidden_dim = 530}};
  on_any_threads<T>(mixture, 700, false);  // as many items of an expert as there are rows in more than one block
  in_any_batch<T>(mixture, {}, 1, {0, 100}, 512);
}
