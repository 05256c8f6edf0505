#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Returns the eigenvalues of a real square matrix with their multiplicity, sorted by real part, then by imaginary
/// part.
///
///     A v = σ v                                                                                         (1)
///
/// @param a [n, n] in  general, row-major, on the host
/// @return n values in double; real ones have imaginary part 0. All are NaN if an element is not finite
/// @throws ArgumentError unless a is square, Error if the QR iteration does not converge
/// @cost  about 10·n³ flop
template <class T, class B>
std::vector<std::complex<double>> eigenvalues(View<T, 2, B> a);

/// A square matrix with the operations of the QR algorithm: Householder reflections from both sides, which keep the
/// eigenvalues and move them towards the diagonal.
///
/// The library Eigen is not used, because its solvers call inline functions for aligned memory. If a program contains
/// object files for several instruction sets, the linker keeps one copy of each of these functions. This copy can
/// assume an alignment that the memory of the other object files does not have.
class SimilarMatrix {
 public:
  explicit SimilarMatrix(Index n) : n_(n), a_(static_cast<std::size_t>(n * n)) {}

  double& operator()(Index i, Index j) { return a_[static_cast<std::size_t>(i * n_ + j)]; }

  /// Transforms the matrix to Hessenberg form: all elements below the first subdiagonal become 0, and the eigenvalues
  /// stay the same.
  ///
  /// Source: Golub and Van Loan 2013, Matrix Computations, algorithm 7.4.2.
  void to_hessenberg() {
    std::vector<double> v(static_cast<std::size_t>(n_));
    for (Index k = 0; k + 2 < n_; ++k) {
      const Index size = n_ - k - 1;
      for (Index i = 0; i < size; ++i) v[static_cast<std::size_t>(i)] = (*this)(k + 1 + i, k);
      reflect(v.data(), size, k + 1, k, n_, 0, n_);
      for (Index i = k + 2; i < n_; ++i) (*this)(i, k) = 0;
    }
  }

  /// Makes one step of the QR iteration with two shifts, on rows and columns [begin, end) of a Hessenberg matrix. The
  /// range must have at least three rows.
  ///
  /// Source: Francis 1961; Golub and Van Loan 2013, algorithm 7.5.1.
  /// @param sum, product  the sum and the product of the two shifts
  void francis_step(Index begin, Index end, double sum, double product) {
    SimilarMatrix& h = *this;
    const double a = h(begin, begin), b = h(begin + 1, begin);
    std::array<double, 3> v{a * (a - sum) + h(begin, begin + 1) * b + product, b * (a + h(begin + 1, begin + 1) - sum),
                            b * h(begin + 2, begin + 1)};
    for (Index k = begin; k + 1 < end; ++k) {
      const Index size = std::min<Index>(3, end - k), left = std::max(begin, k - 1);
      if (k > begin)
        for (Index i = 0; i < size; ++i) v[static_cast<std::size_t>(i)] = h(k + i, k - 1);
      reflect(v.data(), size, k, left, end, begin, std::min(end, k + 4));
      if (k > begin)
        for (Index i = 1; i < size; ++i) h(k + i, k - 1) = 0;
    }
  }

 private:
  // Replaces the matrix A by H A H. H = I − b u uᵀ is the Householder reflection that turns v into a multiple of the
  // first unit vector. H acts on the rows and columns from `first` to `first + size − 1`. Changes only the columns
  // [left, right) of these rows and the rows [top, bottom) of these columns. Overwrites v with u.
  void reflect(double* v, Index size, Index first, Index left, Index right, Index top, Index bottom) {
    double largest = 0, squares = 0;
    for (Index i = 0; i < size; ++i) largest = std::max(largest, std::abs(v[i]));
    if (largest == 0) return;
    for (Index i = 0; i < size; ++i) {
      v[i] /= largest;
      squares += v[i] * v[i];
    }
    const double length = std::copysign(std::sqrt(squares), v[0]);
    v[0] += length;
    const double b = 1 / (length * v[0]);  // 2 / uᵀu
    for (Index j = left; j < right; ++j) {
      double s = 0;
      for (Index i = 0; i < size; ++i) s += v[i] * (*this)(first + i, j);
      for (Index i = 0; i < size; ++i) (*this)(first + i, j) -= b * s * v[i];
    }
    for (Index i = top; i < bottom; ++i) {
      double s = 0;
      for (Index j = 0; j < size; ++j) s += (*this)(i, first + j) * v[j];
      for (Index j = 0; j < size; ++j) (*this)(i, first + j) -= b * s * v[j];
    }
  }

  Index n_;
  std::vector<double> a_;
};

/// Returns the eigenvalues of the 2 × 2 matrix [[a, b], [c, d]].
inline std::array<std::complex<double>, 2> eigenvalues_of_two(double a, double b, double c, double d) {
  const double half = (a - d) / 2, square = half * half + b * c, root = std::sqrt(std::abs(square));
  if (square < 0) return {std::complex<double>(d + half, root), std::complex<double>(d + half, -root)};
  const double from_d = half + std::copysign(root, half);  // adds numbers of equal sign: no cancellation
  return {d + from_d, from_d == 0 ? d : d - b * c / from_d};
}

template <class T, class B>
std::vector<std::complex<double>> eigenvalues(View<T, 2, B> a) {
  GATEFOLD_REQUIRE(B::is_host, "gatefold: eigenvalues are computed on the host; copy the matrix first");
  expect_shape("eigenvalues", "a", a, {any_extent, a.extent(0)});
  const Index n = a.extent(0);
  constexpr double epsilon = std::numeric_limits<double>::epsilon(), nan = std::numeric_limits<double>::quiet_NaN();
  double scale = std::numeric_limits<double>::min();
  bool finite = true;
  for (Index i = 0; i < a.size(); ++i) {
    finite = finite && functor::is_finite(a.data()[i]);
    scale = std::max(scale, std::abs(static_cast<double>(a.data()[i])));
  }
  if (!finite) return std::vector<std::complex<double>>(static_cast<std::size_t>(n), {nan, nan});
  SimilarMatrix h(n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) h(i, j) = static_cast<double>(a(i, j)) / scale;
  h.to_hessenberg();

  std::vector<std::complex<double>> values;
  // The QR iteration has already found the eigenvalues that belong to the rows from `end` on.
  Index end = n;
  for (Index steps = 0, here = 0; end > 0;) {
    // The QR iteration continues with the rows [begin, end), the last diagonal block without a zero on its subdiagonal.
    Index begin = end - 1;
    const auto negligible = [&](Index i) {
      const double around = std::abs(h(i - 1, i - 1)) + std::abs(h(i, i));
      return std::abs(h(i, i - 1)) <= std::max(epsilon * around, epsilon * epsilon);
    };
    while (begin > 0 && !negligible(begin)) --begin;
    const Index size = end - begin;
    if (size <= 2) {
      if (size == 1)
        values.push_back(scale * h(begin, begin));
      else
        for (const auto v :
             eigenvalues_of_two(h(begin, begin), h(begin, end - 1), h(end - 1, begin), h(end - 1, end - 1)))
          values.push_back(scale * v);
      end = begin;
      here = 0;
      continue;
    }
    if (++steps > 40 * n) throw Error("eigenvalues: the QR iteration did not converge");
    const double p = h(end - 2, end - 2), q = h(end - 1, end - 1);
    double sum = p + q, product = p * q - h(end - 2, end - 1) * h(end - 1, end - 2);
    // After every 10 QR steps without a new eigenvalue, the iteration may be in a cycle. Other shifts end the cycle, as
    // in EISPACK's hqr.
    if (++here % 10 == 0) {
      const double w = std::abs(h(end - 1, end - 2)) + std::abs(h(end - 2, end - 3));
      sum = 1.5 * w;
      product = w * w;
    }
    h.francis_step(begin, end, sum, product);
  }
  std::sort(values.begin(), values.end(), [](const auto& x, const auto& y) {
    return x.real() != y.real() ? x.real() < y.real() : x.imag() < y.imag();
  });
  return values;
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
