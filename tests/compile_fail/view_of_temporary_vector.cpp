// expect: (// |\{")gatefold: a View does not keep a temporary alive; give it a name first
#include <gatefold/gatefold.hpp>

#include <Eigen/Core>
#include <array>
#include <span>
#include <type_traits>
#include <vector>

using namespace gatefold;

using Constant = View<const float, 1, Cpu>;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
static_assert(!std::is_constructible_v<Constant, std::vector<float>> &&
              !std::is_convertible_v<std::vector<float>, Constant>);
static_assert(!std::is_constructible_v<Constant, std::array<float, 3>> &&
              !std::is_constructible_v<Constant, Eigen::VectorXf>);
static_assert(!std::is_constructible_v<View<const float, 2, Cpu>, Matrix>);
// A View may be made from a temporary that does not own the elements, for example from a std::span.
static_assert(std::is_constructible_v<Constant, std::span<const float>> &&
              std::is_constructible_v<Constant, std::span<float>>);
static_assert(std::is_constructible_v<Constant, Eigen::Map<Eigen::VectorXf>>);
static_assert(std::is_constructible_v<View<const float, 2, Cpu>, Eigen::Map<Matrix>>);
static_assert(std::is_constructible_v<Constant, const std::vector<float>&>);

int main() {
  std::vector<float> named{1, 2};
  Constant x = named;
#ifdef GATEFOLD_FAIL
  x = std::vector<float>{1, 2};
#endif
  return static_cast<int>(x.size());
}
