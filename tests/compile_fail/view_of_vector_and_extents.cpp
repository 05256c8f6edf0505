// expect: (// |\{")gatefold: a View with extents is made of a pointer: View\{v\.data\(\), rows, columns\}
#include <gatefold/gatefold.hpp>

#include <type_traits>
#include <vector>

using namespace gatefold;

using Rows = View<const float, 2, Cpu>;
static_assert(!std::is_constructible_v<Rows, std::vector<float>&, Index, Index>);
static_assert(!std::is_constructible_v<Rows, const Tensor<float, 1, Cpu>&, Index, Index>);
static_assert(std::is_constructible_v<Rows, float*, int, Index>);

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  std::vector<float> x(6);
#ifndef GATEFOLD_FAIL
  trainer.step({x.data(), 3, 2}, {x.data(), 3, 2});
#else
  trainer.step({x, 3, 2}, {x, 3, 2});
  const Rows rows(x, 3, 2);
#endif
}
