#include "gatefold/tensor/tensor.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

namespace {

/// A host memory that counts its allocations.
struct Counting {
  static constexpr bool is_host = true;
  static inline int allocations = 0, releases = 0;
  static inline std::size_t last_bytes = 0, poisoned = 0;
  static inline bool short_of_memory = false;

  static void* allocate(std::size_t bytes) {
    last_bytes = bytes;
    if (short_of_memory || bytes > (std::size_t(1) << 40)) throw std::bad_alloc();
    ++allocations;
    return std::malloc(bytes);
  }
  static void release(void* p) {
    ++releases;
    std::free(p);
  }
  static void poison(void* p, std::size_t bytes) {
    poisoned = bytes;
    std::memset(p, 0xff, bytes);
  }
};

struct Counts {
  int allocations = Counting::allocations, releases = Counting::releases;
  int allocated() const { return Counting::allocations - allocations; }
  int released() const { return Counting::releases - releases; }
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

using Matrix = Tensor<double, 2, Counting>;

}  // namespace

TEST_CASE("Tensor: moves and does not copy") {
  // compile_fail/copied_tensor checks that a copy does not compile; a trait sees only the declaration.
  static_assert(std::is_nothrow_move_constructible_v<Matrix> && std::is_nothrow_move_assignable_v<Matrix>);
  static_assert(!std::is_convertible_v<Index, Tensor<double, 1, Counting>>);
  static_assert(!std::is_constructible_v<Matrix, Index>);
  static_assert(std::is_constructible_v<Matrix, int, Index>);
  static_assert(!std::is_constructible_v<Matrix, double, Index>);  // a fraction is no extent
}

TEST_CASE("Tensor: allocates once and frees once") {
  const Counts counts;
  {
    Matrix a(3, 4);
    CHECK(Counting::last_bytes == 12 * sizeof(double));
    CHECK(counts.allocated() == 1);
    double* const data = a.data();

    Matrix b(std::move(a));
    CHECK(b.data() == data);
    CHECK(b.extent(1) == 4);
    CHECK(a.data() == nullptr);
    CHECK(a.size() == 0);

    Matrix c;
    c = std::move(b);
    CHECK(c.data() == data);
    c = Matrix(5, 5);
    CHECK(c.size() == 25);
    CHECK(counts.allocated() == 2);

    Matrix& same = c;
    c = std::move(same);
    CHECK(c.size() == 25);
    a.resize(2, 2);
    CHECK(counts.allocated() == 3);
  }
  CHECK(counts.released() == 3);
}

TEST_CASE("Tensor: without elements it allocates nothing") {
  const Counts counts;
  {
    Matrix nothing, flat(0, 512), thin(7, 0);
    CHECK(nothing.size() == 0);
    CHECK(flat.extent(0) == 0);
    CHECK(flat.extent(1) == 512);
    CHECK(thin.extent(0) == 7);
    CHECK(flat.view().empty());
    const Matrix moved(std::move(thin));
    CHECK(moved.extent(0) == 7);
  }
  CHECK(counts.allocated() == 0);
  CHECK(counts.released() == 0);
}

TEST_CASE("Tensor: resize keeps the capacity") {
  const Counts counts;
  {
    Matrix a(8, 4);
    double* const data = a.data();
    a.resize(2, 3);
    CHECK(a.data() == data);
    CHECK(a.extent(0) == 2);
    CHECK(a.extent(1) == 3);
    CHECK(a.size() == 6);
    a.resize(0, 9);
    CHECK(a.size() == 0);
    a.resize(4, 8);
    CHECK(a.data() == data);
    CHECK(counts.allocated() == 1);

    a.resize(33, 1);
    CHECK(counts.allocated() == 2);
    CHECK(counts.released() == 1);
    a.resize(8, 4);
    CHECK(counts.allocated() == 2);

    Matrix b;
    b.resize_like(a);
    CHECK(b.extent(0) == 8);
    CHECK(b.extent(1) == 4);
  }
  CHECK(counts.allocated() == counts.released());
}

TEST_CASE("Tensor: a move moves the capacity too") {
  Matrix big(10, 10), small(1, 1);
  const Counts counts;
  small = std::move(big);
  small.resize(5, 20);
  CHECK(counts.allocated() == 0);
  big = Matrix();
  big.resize(1, 1);
  CHECK(big.size() == 1);
}

TEST_CASE("Tensor: negative and overflowing sizes throw and change nothing") {
  Matrix a(2, 3);
  double* const data = a.data();
  const Counts counts;
  const Index huge = Index(1) << 40;
  CHECK(message_of([&] { a.resize(-1, 3); }) == "Tensor.resize: extent: expected at least 0, got -1");
  CHECK(message_of([&] { a.resize(3, std::numeric_limits<Index>::min()); }) ==
        "Tensor.resize: extent: expected at least 0, got -9223372036854775808");
  CHECK(message_of([&] { a.resize(0, -2); }) == "Tensor.resize: extent: expected at least 0, got -2");
  CHECK(message_of([&] { a.resize(huge, huge); }) == "Tensor.resize: size: expected at most 2^63 bytes, got more");
  CHECK_THROWS_AS(a.resize(Index(1) << 60, 1), ArgumentError);  // 2^60 doubles are one byte too many
  CHECK_THROWS_AS(Matrix(Index(1) << 32, Index(1) << 32), ArgumentError);
  CHECK_THROWS_AS((Tensor<char, 4, Counting>(huge, huge, huge, huge)), ArgumentError);
  CHECK_THROWS_AS((Tensor<char, 1, Counting>(-1)), ArgumentError);
  CHECK(counts.allocated() == 0);
  CHECK(counts.released() == 0);
  CHECK(a.data() == data);
  CHECK(a.extent(0) == 2);
  CHECK(a.extent(1) == 3);
}

TEST_CASE("Tensor: the largest size that fits requests its bytes") {
  Matrix a;
  CHECK_THROWS_AS(a.resize((Index(1) << 60) - 1, 1), std::bad_alloc);
  CHECK(Counting::last_bytes == ((std::size_t(1) << 60) - 1) * 8);
  CHECK_THROWS_AS((Tensor<char, 2, Counting>(std::numeric_limits<Index>::max(), 1)), std::bad_alloc);
  CHECK(Counting::last_bytes == static_cast<std::size_t>(std::numeric_limits<Index>::max()));
}

TEST_CASE("Tensor: can be used after a failed allocation") {
  const Counts counts;
  {
    Matrix a(2, 2);
    Counting::short_of_memory = true;
    CHECK_THROWS_AS(a.resize(100, 100), std::bad_alloc);
    Counting::short_of_memory = false;
    CHECK(a.size() == 0);
    a.resize(2, 2);
    a(1, 1) = 3;
    CHECK(a(1, 1) == 3);
  }
  CHECK(counts.allocated() == counts.released());
}

TEST_CASE("Tensor: views and elements share its memory") {
  Matrix a(2, 3);
  for (Index i = 0; i < 6; ++i) a.data()[i] = static_cast<double>(i);
  const View<double, 2, Counting> v = a;
  v(1, 2) = 50;
  CHECK(a(1, 2) == 50);
  const Matrix& fixed = a;
  const View<const double, 2, Counting> c = fixed;
  CHECK(c(0, 2) == 2);
  CHECK(fixed(1, 0) == 3);
  CHECK(c.data() == a.data());
  static_assert(!std::is_convertible_v<const Matrix&, View<double, 2, Counting>>);
  static_assert(std::is_same_v<decltype(fixed.view()), View<const double, 2, Counting>>);
}

TEST_CASE("Tensor: a skipped tensor is empty until it is resized") {
  Matrix a(2, 3), b(1, 1), c;
  a.skip();
  CHECK(a.is_skipped());
  CHECK(a.size() == 0);
  CHECK(std::as_const(a).data() == nullptr);
  b.resize_like(a);
  CHECK(b.is_skipped());
  CHECK(b.size() == 0);
  c = std::move(b);
  CHECK(c.is_skipped());
  const Matrix moved(std::move(a));
  CHECK(moved.is_skipped());
  c.resize(2, 2);
  CHECK_FALSE(c.is_skipped());
  c(1, 1) = 3;
  CHECK(c(1, 1) == 3);
  CHECK_FALSE(Matrix(0, 0).is_skipped());
}

#ifndef NDEBUG
TEST_CASE("Tensor: without memory it has extents and an address") {
  double address = 0;
  Matrix a(2, 3);
  a.resize_without_memory(&address, 4, 5);
  CHECK(a.size() == 20);
  CHECK(a.data() == &address);
  Matrix b = std::move(a);
  CHECK(b.data() == &address);
  CHECK(b.extent(1) == 5);
  b.resize(1, 2);
  CHECK(b.data() != &address);
  b(0, 1) = 3;
  CHECK(b(0, 1) == 3);
}

TEST_CASE("Tensor: debug builds poison elements that resize drops") {
  Matrix a(2, 3);
  CHECK(Counting::poisoned == 6 * sizeof(double));
  CHECK(std::isnan(a(0, 0)));
  a(1, 2) = 7;
  a.resize(3, 2);
  CHECK(std::isnan(a(2, 1)));
  Tensor<float, 1, Cpu> f(4);
  CHECK(std::isnan(f(3)));
  Tensor<Index, 1, Cpu> i(4);
  CHECK(i(3) == -1);
}
#endif
