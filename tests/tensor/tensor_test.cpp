#include "gatefold/tensor/tensor.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/pack.hpp"

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

TEST_CASE("Tensor: a move also transfers the capacity") {
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

TEST_CASE("Tensor: the largest valid size requests the right byte count") {
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
TEST_CASE("Tensor: resize_without_memory sets the extents and the address") {
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

namespace {

/// A Cpu backend that counts how often zeros are written.
struct CountsZeros : cpu::Primitives<CountsZeros, AsTheyAre> {
  static inline std::atomic<int> written{0};
  static void write_zeros(Context& ctx, void* p, std::size_t bytes) {
    ++written;
    cpu::Primitives<CountsZeros, AsTheyAre>::write_zeros(ctx, p, bytes);
  }
};
using Rank3 = Tensor<float, 3, CountsZeros>;

/// A tensor of 24 sevens whose zeros are deferred. `raw` shows the elements in memory.
struct Deferred {
  CountsZeros::Context ctx{1};
  Rank3 t{2, 3, 4};
  float* raw = t.data();

  Deferred() {
    std::fill_n(raw, 24, 7.f);
    t.defer_zeros(ctx);
    CountsZeros::written = 0;
  }
  bool sevens() const { return std::count(raw, raw + 24, 7.f) == 24; }
  bool zeros() const { return std::count(raw, raw + 24, 0.f) == 24; }
};

}  // namespace

TEST_CASE("deferred zeros: non-const access writes the zeros once") {
  const auto written_by = [](auto&& ask) {
    Deferred d;
    CHECK(d.sevens());
    ask(d.t);
    CHECK(d.zeros());
    d.raw[3] = 5;
    ask(d.t);
    CHECK(d.raw[3] == 5);
    CHECK(!d.t.take_zeros());
    CHECK(CountsZeros::written == 1);
  };
  written_by([](Rank3& t) { t.view(); });
  written_by([](Rank3& t) { t.data(); });
  written_by([](Rank3& t) { t(1, 2, 3); });
  written_by([](Rank3& t) { [[maybe_unused]] const View<float, 3, CountsZeros> v = t; });
  written_by([](Rank3& t) { write_zeros(t); });
}

TEST_CASE("deferred zeros: const access throws until they are written") {
  const auto refused = [](auto&& ask) {
    Deferred d;
    CHECK_THROWS_WITH_AS(
        ask(std::as_const(d.t)),
        "Tensor: the zeros of set_zero_later are not yet written: call write_zeros(pack) before you read it", Error);
    CHECK(d.sevens());
    write_zeros(d.t);
    ask(std::as_const(d.t));
    CHECK(d.zeros());
  };
  refused([](const Rank3& t) { t.view(); });
  refused([](const Rank3& t) { t.data(); });
  refused([](const Rank3& t) { t(1, 2, 3); });
  refused([](const Rank3& t) { [[maybe_unused]] const View<const float, 3, CountsZeros> v = t; });
}

TEST_CASE("deferred zeros: extents and size write nothing") {
  Deferred d;
  CHECK(d.t.extent(0) * d.t.extent(std::size_t(1)) * d.t.extent(2) == d.t.size());
  CHECK(d.sevens());
}

TEST_CASE("deferred zeros: after take_zeros the caller writes the elements") {
  Deferred d;
  CHECK(d.t.take_zeros());
  CHECK(!d.t.take_zeros());
  CHECK(d.t.data() == d.raw);
  CHECK(d.sevens());
  CHECK(CountsZeros::written == 0);
}

TEST_CASE("deferred zeros: move with the elements") {
  Deferred d;
  Rank3 moved(std::move(d.t));
  CHECK(d.sevens());
  CHECK(!d.t.take_zeros());  // NOLINT: the moved-from tensor has no deferred zeros
  Rank3 assigned(1, 1, 1);
  assigned(0, 0, 0) = 3;
  assigned = std::move(moved);
  CHECK(moved.data()[0] == 3);  // NOLINT: it got the other tensor's elements
  CHECK(d.sevens());
  CHECK(assigned(0, 0, 0) == 0);
  CHECK(d.zeros());

  Deferred other;
  other.t.resize(2, 3, 4);  // discards the contents
  CHECK(!other.t.take_zeros());
}

TEST_CASE("deferred zeros: concurrent access writes the zeros once") {
  for (int round = 0; round < 50; ++round) {
    Deferred d;
    std::atomic<int> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (++ready; ready < 4;) std::this_thread::yield();
        const auto v = d.t.view();
        wrong += static_cast<int>(std::count(v.data(), v.data() + 24, 7.f));
      });
    for (auto& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(CountsZeros::written == 1);
  }
}

TEST_CASE("set_zero_later: defers only the zeros of rank-3 tensors") {
  CountsZeros::Context ctx(1);
  Tensor<float, 2, CountsZeros> matrix(2, 2);
  std::fill_n(matrix.data(), 4, 7.f);
  set_zero_later(ctx, matrix);
  CHECK(std::count(matrix.data(), matrix.data() + 4, 0.f) == 4);
  Rank3 weights(1, 2, 2);
  float* const raw = weights.data();
  std::fill_n(raw, 4, 7.f);
  set_zero_later(ctx, weights);
  CHECK(raw[0] == 7);
  write_zeros(weights);
  CHECK(std::count(raw, raw + 4, 0.f) == 4);
}

TEST_CASE("deferred zeros: only rank-3 tensors have extra members") {
  CHECK(sizeof(Tensor<float, 2, CountsZeros>) == sizeof(View<float, 2, CountsZeros>) + sizeof(Index));
  CHECK(sizeof(Rank3) == sizeof(View<float, 3, CountsZeros>) + sizeof(Index) + sizeof(void*) + sizeof(CopyStamp));
}

namespace {

using Stamped = Tensor<float, 3, Cpu>;
const std::uint64_t pass = CopyStamp::next(), another = CopyStamp::next();

/// Returns whether the tensor still counts as copied after f.
template <class F>
bool kept_by(const F& f) {
  Stamped t(2, 3, 4);
  t.copied_by(pass);
  f(t);
  return t.is_copied_by(pass);
}

}  // namespace

TEST_CASE("CopyStamp: each pass has its own number") { CHECK((pass != 0 && another != 0 && pass != another)); }

TEST_CASE("CopyStamp: a tensor keeps its stamp until mutable access") {
  CHECK(kept_by([](Stamped&) {}));
  CHECK(kept_by([](Stamped& t) { std::as_const(t).data(); }));
  CHECK(kept_by([](Stamped& t) { std::as_const(t).view(); }));
  CHECK(kept_by([](Stamped& t) { static_cast<void>(std::as_const(t)(0, 1, 2)); }));
  CHECK(kept_by([](Stamped& t) {
    View<const float, 3, Cpu> v = t;
    static_cast<void>(v);
  }));
  CHECK(kept_by([](Stamped& t) {
    View<const float, 3, CpuBf16> v = t;
    static_cast<void>(v);
  }));
  CHECK(kept_by([](Stamped& t) { count_values(t); }));
  CHECK(kept_by([](Stamped& t) { FlatTensor(std::as_const(t)).data(); }));
  CHECK(kept_by([](Stamped& t) { for_each_learned([](const Name&, const auto& w) { w.data(); }, std::as_const(t)); }));
  CHECK(!kept_by([](Stamped& t) { t.data(); }));
  CHECK(!kept_by([](Stamped& t) {
    Cpu::Context ctx;
    t.defer_zeros(ctx);
    t.take_zeros();
  }));
  CHECK(!kept_by([](Stamped& t) { t.view(); }));
  CHECK(!kept_by([](Stamped& t) { t(0, 1, 2) = 3; }));
  CHECK(!kept_by([](Stamped& t) {
    View<float, 3, Cpu> v = t;
    static_cast<void>(v);
  }));
  CHECK(!kept_by([](Stamped& t) {
    View<float, 3, CpuBf16> v = t;
    static_cast<void>(v);
  }));
  CHECK(!kept_by([](Stamped& t) { FlatTensor<float, Cpu>(t).data(); }));
  CHECK(!kept_by([](Stamped& t) { for_each_tensor([](const Name&, auto& w) { w.data(); }, t); }));
  CHECK(!kept_by([](Stamped& t) { for_each_learned([](const Name&, auto& w) { w.data(); }, t); }));
  CHECK(!kept_by([](Stamped& t) { t.copied_by(another); }));
}

TEST_CASE("CopyStamp: moving or reshaping a tensor clears its stamp") {
  CHECK(!kept_by([](Stamped& t) { t.resize(2, 3, 4); }));
  CHECK(!kept_by([](Stamped& t) { t = Stamped(2, 3, 4); }));
  CHECK(!kept_by([](Stamped& t) { const Stamped taken = std::move(t); }));
  CHECK(!kept_by([](Stamped& t) {
    Stamped other;
    std::swap(t, other);
    CHECK(!other.is_copied_by(pass));
    std::swap(t, other);
  }));
}

TEST_CASE("CopyStamp: threads that write different elements do not race") {  // for the thread sanitizer
  CHECK(!kept_by([](Stamped& t) {
    std::thread one([&] { t(0, 0, 0) = 1; });
    t(1, 0, 0) = 2;
    one.join();
    CHECK(std::as_const(t)(0, 0, 0) == 1);
  }));
}
