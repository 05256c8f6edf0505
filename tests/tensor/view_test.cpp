#include "gatefold/tensor/view.hpp"

#include <doctest/doctest.h>

#include <Eigen/Core>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/forked.hpp"

using namespace gatefold;

namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

/// Returns a [rows, columns] matrix whose elements count upward.
RowMajor counting(Index rows, Index columns) {
  RowMajor m(rows, columns);
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) m(i, j) = static_cast<double>(i * columns + j);
  return m;
}

/// Has parameters like a function of a policy that takes items.
template <class T, class B>
Index rows_of(const Tensor<T, 1, B>&, In<T, 2, B> x) {
  return x.extent(0);
}

struct Elsewhere {
  static constexpr bool is_host = false;
};

}  // namespace

TEST_CASE("View: is row-major, in every rank") {
  std::vector<double> data(120);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i);
  const View<double, 4, Cpu> v(data.data(), 2, 3, 4, 5);
  for (Index a = 0; a < 2; ++a)
    for (Index b = 0; b < 3; ++b)
      for (Index c = 0; c < 4; ++c)
        for (Index d = 0; d < 5; ++d) REQUIRE(v(a, b, c, d) == ((a * 3 + b) * 4 + c) * 5 + d);
  CHECK(v.size() == 120);
  const View<double, 3, Cpu> w(data.data(), 6, 4, 5);
  CHECK(w(5, 3, 4) == 119);
  CHECK(View<double, 2, Cpu>(data.data(), 24, 5)(3, 2) == 17);
  CHECK(View<double, 1, Cpu>(data.data(), 120)(7) == 7);
  v(1, 0, 0, 0) = -1;
  CHECK(data[60] == -1);
}

TEST_CASE("View: may be default-constructed or empty") {
  const View<double, 2, Cpu> none;
  CHECK(none.data() == nullptr);
  CHECK(none.size() == 0);
  CHECK(none.empty());
  const View<double, 3, Cpu> flat(nullptr, 4, 0, 5);
  CHECK(flat.empty());
  CHECK(flat.extent(0) == 4);
  CHECK(flat.extent(2) == 5);
}

TEST_CASE("View: sizes have 64 bits") {
  const View<const char, 3, Cpu> v(nullptr, Index(1) << 20, Index(1) << 20, Index(1) << 20);
  CHECK(v.size() == Index(1) << 60);
  CHECK(View<const char, 2, Cpu>(nullptr, Index(1) << 33, 1).extent(0) == Index(1) << 33);
}

TEST_CASE("View: as() gives other extents over the same elements") {
  RowMajor m = counting(6, 4);
  const View<double, 2, Cpu> v = m;
  const View<double, 3, Cpu> w = v.as(2, 3, 4);
  CHECK(w.data() == v.data());
  CHECK(w(1, 2, 3) == 23);
  CHECK(v.as(24)(13) == 13);
  CHECK(v.as(1, 24).extent(1) == 24);
}

TEST_CASE("View: rows() returns a view of some rows") {
  RowMajor m = counting(6, 4);
  const View<double, 2, Cpu> v = m;
  const View<double, 2, Cpu> part = v.rows(2, 3);
  CHECK(part.extent(0) == 3);
  CHECK(part.extent(1) == 4);
  CHECK(part(0, 0) == 8);
  CHECK(part(2, 3) == 19);
  CHECK(v.rows(6, 0).empty());
  CHECK(v.as(2, 3, 4).rows(1, 1)(0, 0, 0) == 12);
  CHECK(v.as(24).rows(5, 2)(1) == 6);
  CHECK(rows_if_any(v, 2, 3)(0, 0) == 8);
  CHECK(rows_if_any(View<const double, 1, Cpu>{}, 2, 3).data() == nullptr);
}

TEST_CASE("View: a mutable view converts to const, not vice versa") {
  using Mutable = View<double, 2, Cpu>;
  using Const = View<const double, 2, Cpu>;
  static_assert(std::is_convertible_v<Mutable, Const>);
  static_assert(!std::is_convertible_v<Const, Mutable>);
  static_assert(!std::is_convertible_v<Mutable, View<const double, 1, Cpu>>);
  static_assert(!std::is_convertible_v<Mutable, View<const float, 2, Cpu>>);
  static_assert(!std::is_convertible_v<Mutable, View<const double, 2, Elsewhere>>);
  RowMajor m = counting(2, 3);
  const Const c = Mutable(m);
  CHECK(c.data() == m.data());
  CHECK(c.extent(0) == 2);
  CHECK(c.extent(1) == 3);
}

TEST_CASE("View: converts from row-major Eigen matrices") {
  RowMajor m = counting(3, 4);
  const View<double, 2, Cpu> v = m;
  CHECK(v.data() == m.data());
  CHECK(v.extent(0) == 3);
  CHECK(v.extent(1) == 4);
  CHECK(v(2, 1) == m(2, 1));

  const RowMajor& fixed = m;
  const View<const double, 2, Cpu> c = fixed;
  CHECK(c(1, 3) == m(1, 3));
  static_assert(!std::is_convertible_v<const RowMajor&, View<double, 2, Cpu>>);
  static_assert(!std::is_convertible_v<RowMajor&, View<float, 2, Cpu>>);
  static_assert(!std::is_convertible_v<RowMajor&, View<const double, 2, Elsewhere>>);

  Eigen::Map<RowMajor> map(m.data(), 4, 3);
  const View<double, 2, Cpu> mapped = map;
  CHECK(mapped.extent(0) == 4);
  CHECK(mapped(3, 2) == 11);
  const View<double, 2, Cpu> middle = m.middleRows(1, 2);
  CHECK(middle(0, 0) == 4);

  Eigen::Matrix<float, 2, 3, Eigen::RowMajor> small;
  small << 1, 2, 3, 4, 5, 6;
  CHECK(View<const float, 2, Cpu>(small)(1, 0) == 4);

  const RowMajor nothing(0, 4);
  CHECK(View<const double, 2, Cpu>(nothing).empty());
  CHECK(View<const double, 2, Cpu>(nothing).extent(1) == 4);
}

TEST_CASE("View: a matrix with a stride between rows throws") {
  RowMajor m = counting(3, 4);
  CHECK_THROWS_WITH_AS((View<double, 2, Cpu>(m.leftCols(3))),
                       "View: matrix.outerStride: expected 3 (rows without gaps), got 4", ArgumentError);
  CHECK_THROWS_AS((View<const double, 2, Cpu>(m.block(1, 1, 2, 2))), ArgumentError);
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> wide(m.data(), 2, 3, Eigen::OuterStride<>(5));
  CHECK_THROWS_AS((View<double, 2, Cpu>(wide)), ArgumentError);
}

TEST_CASE("View: a matrix or vector with element stride throws") {
  RowMajor m = counting(3, 4);
  Eigen::Map<RowMajor, 0, Strides> every_other(m.data(), 2, 2, Strides(2, 2));
  CHECK_THROWS_WITH_AS((View<double, 2, Cpu>(every_other)),
                       "View: matrix: expected contiguous elements (an inner stride of 1), got 2", ArgumentError);
  CHECK_THROWS_WITH_AS((View<double, 1, Cpu>(m.col(1))),
                       "View: vector: expected contiguous elements (an inner stride of 1), got 4", ArgumentError);
  Eigen::Map<Eigen::VectorXd, 0, Eigen::InnerStride<>> sparse(m.data(), 6, Eigen::InnerStride<>(2));
  CHECK_THROWS_AS((View<const double, 1, Cpu>(sparse)), ArgumentError);
  CHECK(View<double, 1, Cpu>(m.row(1))(2) == 6);
}

TEST_CASE("View: converts from contiguous ranges") {
  std::vector<double> vector{1, 2, 3};
  const View<double, 1, Cpu> v = vector;
  CHECK(v.data() == vector.data());
  CHECK(v.extent(0) == 3);
  v(0) = 9;
  CHECK(vector[0] == 9);

  const std::vector<double>& fixed = vector;
  CHECK(View<const double, 1, Cpu>(fixed)(1) == 2);
  static_assert(!std::is_convertible_v<const std::vector<double>&, View<double, 1, Cpu>>);
  static_assert(!std::is_convertible_v<std::vector<float>&, View<const double, 1, Cpu>>);
  static_assert(!std::is_convertible_v<std::vector<double>&, View<double, 2, Cpu>>);
  static_assert(!std::is_convertible_v<std::vector<double>&, View<double, 1, Elsewhere>>);

  const View<double, 1, Cpu> of_span = std::span<double>(vector).subspan(1);
  CHECK(of_span.size() == 2);
  CHECK(of_span(0) == 2);
  const std::span<const double> seen(vector);
  CHECK(View<const double, 1, Cpu>(seen)(2) == 3);
  static_assert(!std::is_convertible_v<std::span<const double>, View<double, 1, Cpu>>);

  std::array<Index, 2> array{4, 5};
  CHECK(View<const Index, 1, Cpu>(array)(1) == 5);
  Eigen::VectorXd column = Eigen::VectorXd::LinSpaced(3, 0, 2);
  CHECK(View<double, 1, Cpu>(column)(2) == 2);
  const Eigen::RowVectorXf row = Eigen::RowVectorXf::Ones(4);
  CHECK(View<const float, 1, Cpu>(row).size() == 4);
  const std::vector<double> empty;
  CHECK(View<const double, 1, Cpu>(empty).empty());
}

TEST_CASE("In: does not deduce types, so tensors and matrices convert") {
  const Tensor<double, 1, Cpu> params(1);
  Tensor<double, 2, Cpu> x(5, 2);
  RowMajor m = counting(3, 4);
  CHECK(rows_of(params, x) == 5);
  CHECK(rows_of(params, x.view()) == 5);
  CHECK(rows_of(params, std::as_const(x).view()) == 5);
  CHECK(rows_of(params, m) == 3);
}

#if defined(__unix__) && !defined(NDEBUG)
TEST_CASE("View: an out-of-range index aborts and reports index and extents") {
  if (!support::may_fork) return;
  const std::string path =
      (std::filesystem::temp_directory_path() / ("view_test." + std::to_string(getpid()))).string();
  const auto said_of = [&](const auto& look) {
    const std::string end = support::in_child([&] {
      std::signal(SIGABRT, SIG_DFL);
      if (!std::freopen(path.c_str(), "w", stderr)) return std::string("no file");
      look();
      return std::string("went on");
    });
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    std::filesystem::remove(path);
    return line + end;
  };
  std::vector<float> values(20);
  const View<float, 2, Cpu> matrix(values.data(), 5, 4);
  const View<float, 1, Cpu> row(values.data(), 20);
  CHECK(said_of([&] { matrix(4, 3) = 1; }) == "went on");
  CHECK(said_of([&] { matrix(5, 0) = 1; }) == "View: index [5, 0] is out of range of [5, 4] (killed by signal 6)");
  CHECK(said_of([&] { matrix(0, -1) = 1; }) == "View: index [0, -1] is out of range of [5, 4] (killed by signal 6)");
  CHECK(said_of([&] { row(20) = 1; }) == "View: index [20] is out of range of [20] (killed by signal 6)");
  const View<float, 1, Elsewhere> device(values.data(), 20);
  CHECK(said_of([&] { device(0) = 1; }).find("View: the host accesses an element of device memory") !=
        std::string::npos);
}
#endif
