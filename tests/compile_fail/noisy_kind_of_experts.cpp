// expect: gatefold: a kind of Experts needs noise, but Experts does not pass noise to its kinds; see docs/how-to/extending\.md#expert
// Dropout in one kind of Experts. The dropout would get no noise.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  const Mlp<Relu> mlp{.model_dim = 2, .hidden_dim = 3};
#ifdef GATEFOLD_FAIL
  const Experts kinds{std::tuple{HiddenDropout{0.1, mlp}, mlp}};
#else
  const Experts kinds{std::tuple{mlp, mlp}};
#endif
  (void)kinds;
}
