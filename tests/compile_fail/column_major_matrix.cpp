// expect: gatefold: a matrix must be row-major \(Eigen::RowMajor\)
#include <Eigen/Core>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> good(2, 3);
  View<const float, 2, Cpu> x = good;
#ifdef GATEFOLD_FAIL
  Eigen::MatrixXf bad(2, 3);
  x = bad;
#endif
  return x.empty();
}
