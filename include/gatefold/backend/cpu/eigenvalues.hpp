#pragma once

// Before anything else of Eigen: it brings Eigen/Core without the false warnings of g++ 12 on AVX-512.
#include "gatefold/backend/cpu/register.hpp"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

#include "gatefold/backend/order.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::cpu {

/// The eigenvalues of a real square matrix, by real part, then by imaginary part; each as often as it occurs.
///
///     A v = σ v                                                                                         (1)
///
/// @param a [n, n] in  general, row-major, on the host
/// @return n values in double; real ones have imaginary part 0. All NaN where an element is not finite
/// @throws ArgumentError unless a is square, Error if the QR iteration does not converge
/// @cost  about 10·n³ flop
template <class T, class B>
std::vector<std::complex<double>> eigenvalues(View<T, 2, B> a) {
  static_assert(B::is_host, "gatefold: eigenvalues are computed on the host; copy the matrix first");
  expect_shape("eigenvalues", "a", a, {any_extent, a.extent(0)});
  const Index n = a.extent(0);
  if (n == 0) return {};
  using Matrix = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  if (!std::all_of(a.data(), a.data() + a.size(), [](auto v) { return fn::is_finite(v); }))
    return std::vector<std::complex<double>>(static_cast<std::size_t>(n), {nan, nan});
  const Eigen::MatrixXd m = Eigen::Map<const Matrix>(a.data(), n, n).template cast<double>();
  // Without EigenSolver, which compiles the eigenvectors as well: twice as long.
  const double scale = std::max(m.cwiseAbs().maxCoeff(), std::numeric_limits<double>::min());
  const Eigen::HessenbergDecomposition<Eigen::MatrixXd> hessenberg(m / scale);
  Eigen::RealSchur<Eigen::MatrixXd> schur(n);
  schur.computeFromHessenberg(hessenberg.matrixH(), m, false);
  if (schur.info() != Eigen::Success) throw Error("eigenvalues: the QR iteration did not converge");
  const Eigen::MatrixXd& t = schur.matrixT();  // blocks of one real value or of a complex pair on the diagonal
  std::vector<std::complex<double>> values;
  for (Index i = 0; i < n; ++i) {
    if (i + 1 == n || t(i + 1, i) == 0) {
      values.push_back(scale * t(i, i));
    } else {
      const double half = (t(i, i) - t(i + 1, i + 1)) / 2;
      const std::complex<double> root = std::sqrt(std::complex<double>(half * half + t(i, i + 1) * t(i + 1, i)));
      values.push_back(scale * (t(i + 1, i + 1) + half + root));
      values.push_back(scale * (t(i + 1, i + 1) + half - root));
      ++i;
    }
  }
  std::sort(values.begin(), values.end(), [](const auto& x, const auto& y) {
    return x.real() != y.real() ? x.real() < y.real() : x.imag() < y.imag();
  });
  return values;
}

}  // namespace gatefold::cpu
