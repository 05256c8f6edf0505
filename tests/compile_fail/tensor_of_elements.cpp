// expect: (// |\{")gatefold: a Tensor allocates its memory; use View\{pointer, extents\.\.\.\} for your memory
#include <gatefold/gatefold.hpp>

#include <type_traits>
#include <vector>

using namespace gatefold;

using Rows = Tensor<float, 2, Cpu>;
static_assert(!std::is_constructible_v<Rows, std::vector<float>&, Index, Index> &&
              !std::is_constructible_v<Rows, const float*>);
static_assert(!std::is_constructible_v<Rows, View<const float, 2, Cpu>> &&
              !std::is_convertible_v<View<const float, 2, Cpu>, Rows>);
static_assert(std::is_constructible_v<Rows, Rows>);  // copied_tensor.cpp tests copies

int main() {
  std::vector<float> v(6);
#ifndef GATEFOLD_FAIL
  const Rows tensor(3, 2);
  const View<const float, 2, Cpu> view(v.data(), 3, 2);
#else
  const Rows of_pointer(v.data(), 3, 2), of_vector(v, 3, 2);
#endif
}
