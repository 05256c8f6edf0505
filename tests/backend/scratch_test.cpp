#include "gatefold/backend/scratch.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "support/poisoned.hpp"

using namespace gatefold;

namespace {

struct Counting {
  static constexpr bool is_host = true;
  static inline int allocations = 0, releases = 0;
  static inline bool short_of_memory = false;
  static void* allocate(std::size_t bytes) {
    if (short_of_memory) throw std::bad_alloc();
    ++allocations;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  static void release(void* p) {
    ++releases;
    std::free(p);
  }
  static void poison(void* p, std::size_t bytes) { std::memset(p, 0xff, bytes); }
};
using Arena = Scratch<Counting>;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

constexpr Index kMegabyte = Index(1) << 20;

}  // namespace

TEST_CASE("Arena: cannot be copied") {
  static_assert(!std::is_copy_constructible_v<Arena> && !std::is_copy_assignable_v<Arena>);
  static_assert(!std::is_copy_constructible_v<Arena::Mark>);
}

TEST_CASE("Arena: views have the given extents and do not overlap") {
  Arena arena;
  const auto mark = arena.mark();
  const View<double, 2, Counting> a = arena.scratch<double>(3, 5);
  const View<char, 1, Counting> b = arena.scratch<char>(1);
  const View<float, 4, Counting> c = arena.scratch<float>(2, 3, 4, 5);
  CHECK(a.extent(0) == 3);
  CHECK(a.extent(1) == 5);
  CHECK(c.size() == 120);
  for (Index i = 0; i < a.size(); ++i) a.data()[i] = 1;
  b(0) = 2;
  for (Index i = 0; i < c.size(); ++i) c.data()[i] = 3;
  for (Index i = 0; i < a.size(); ++i) CHECK(a.data()[i] == 1);
  CHECK(b(0) == 2);
}

TEST_CASE("Arena: views are aligned to 256 bytes and backend alignment") {
  Arena arena;
  const auto mark = arena.mark();
  for (const Index bytes : {1, 255, 256, 257, 0, 3}) CHECK(address(arena.scratch<char>(bytes).data()) % 256 == 0);
  CHECK(address(arena.scratch<char>(3 * kMegabyte).data()) % 256 == 0);
  Cpu::Context ctx(1);
  const auto second = ctx.mark();
  for (const Index bytes : {1, 255, 256, 257, 5000000}) CHECK(address(ctx.scratch<char>(bytes).data()) % 64 == 0);
}

TEST_CASE("Arena: a nested mark releases only scratch taken after it") {
  Arena arena;
  const auto outer = arena.mark();
  double* const first = arena.scratch<double>(10).data();
  double *second, *third;
  {
    const auto inner = arena.mark();
    second = arena.scratch<double>(10).data();
    {
      const auto innermost = arena.mark();
      third = arena.scratch<double>(10).data();
    }
    CHECK(arena.scratch<double>(10).data() == third);
    CHECK(arena.taken() == 3 * 256);
  }
  CHECK(arena.taken() == 256);
  CHECK(arena.scratch<double>(10).data() == second);
  CHECK(first != second);
  CHECK(second != third);
}

TEST_CASE("Arena: the address sanitizer sees exactly the bytes in use") {
  using support::poisoned;
  const bool reported = support::address_sanitized;
  Arena arena;
  const auto outer = arena.mark();
  const char* const first = arena.scratch<char>(1001).data();
  CHECK(!poisoned(first));
  CHECK(!poisoned(first + 1000));
  CHECK(poisoned(first + 1001) == reported);
  CHECK(poisoned(first + kMegabyte - 1) == reported);
  const char* second;
  {
    const auto inner = arena.mark();
    second = arena.scratch<char>(5 * kMegabyte).data();  // in its own chunk
    CHECK(!poisoned(second + 5 * kMegabyte - 1));
    CHECK(!poisoned(arena.scratch<char>(256).data()));
  }
  CHECK(!poisoned(first + 1000));
  CHECK(poisoned(first + 1024) == reported);
  CHECK(poisoned(second) == reported);
  CHECK(poisoned(second + 5 * kMegabyte - 1) == reported);
  CHECK(!poisoned(arena.scratch<char>(5 * kMegabyte).data()));
}

TEST_CASE("Arena: allocates on first use, later steps reuse the memory") {
  const int allocations = Counting::allocations, releases = Counting::releases;
  {
    Arena arena;
    CHECK(arena.capacity() == 0);
    { const auto mark = arena.mark(); }
    CHECK(Counting::allocations == allocations);

    const void* before[3] = {};
    int held = 0;
    for (int step = 0; step < 4; ++step) {
      {
        const auto mark = arena.mark();
        const void* now[3] = {arena.scratch<char>(kMegabyte / 2).data(), arena.scratch<char>(3 * kMegabyte).data(),
                              arena.scratch<char>(kMegabyte).data()};
        if (step > 1)
          for (int i = 0; i < 3; ++i) CHECK(now[i] == before[i]);
        for (int i = 0; i < 3; ++i) before[i] = now[i];
      }
      if (step > 0) CHECK(Counting::allocations == held);
      held = Counting::allocations;
    }
    CHECK(held - allocations == 4);  // three chunks, and the one that replaces them after the first step
    CHECK(arena.capacity() == static_cast<std::size_t>(4 * kMegabyte + kMegabyte / 2));
  }
  CHECK(Counting::releases - releases == Counting::allocations - allocations);
}

TEST_CASE("Arena: chunks do not move while the arena grows") {
  Arena arena;
  const auto mark = arena.mark();
  const View<Index, 1, Counting> early = arena.scratch<Index>(100);
  for (Index i = 0; i < 100; ++i) early(i) = i;
  for (int i = 0; i < 20; ++i) arena.scratch<char>(kMegabyte);
  for (Index i = 0; i < 100; ++i) CHECK(early(i) == i);
}

TEST_CASE("Arena: an older mark also releases new chunks") {
  Arena arena;
  {
    const auto mark = arena.mark();
    arena.scratch<char>(100);
    arena.scratch<char>(5 * kMegabyte);
  }
  const std::size_t held = arena.capacity();
  CHECK(held == static_cast<std::size_t>(5 * kMegabyte + 256));
  const auto mark = arena.mark();
  const char* const again = arena.scratch<char>(100).data();
  CHECK(arena.scratch<char>(5 * kMegabyte).data() == again + 256);
  CHECK(arena.capacity() == held);
}

TEST_CASE("Arena: small requests do not block space for large ones") {
  Arena arena;
  const auto outer = arena.mark();
  const char* const early = arena.scratch<char>(1).data();
  const char* const large = arena.scratch<char>(5 * kMegabyte).data();
  CHECK(arena.scratch<char>(1).data() == early + 256);  // in the rest of the first chunk
  {
    const auto inner = arena.mark();
    arena.scratch<char>(3 * kMegabyte);
    CHECK(arena.scratch<char>(1).data() == early + 512);
  }
  const std::size_t held = arena.capacity();
  CHECK(held == static_cast<std::size_t>(9 * kMegabyte));
  CHECK(arena.scratch<char>(1).data() == early + 512);
  const char* const again = arena.scratch<char>(3 * kMegabyte).data();
  CHECK((again < large || again >= large + 5 * kMegabyte));
  CHECK(arena.capacity() == held);
}

TEST_CASE("Arena: repeating the same requests does not grow it") {
  for (unsigned walk = 0; walk < 50; ++walk) {
    Arena arena;
    const auto never_joined = arena.mark();
    arena.scratch<char>(1);
    const auto pass = [&] {
      std::vector<const char*> places;
      std::mt19937 random(walk);
      const auto run = [&](const auto& self, int depth) -> void {
        const auto mark = arena.mark();
        for (int i = 0; i < 4; ++i) {
          const auto draw = random();
          places.push_back(arena.scratch<char>(Index(draw % 7) * kMegabyte / 2 + 1).data());
          if (depth < 3 && draw / 7 % 2 == 0) self(self, depth + 1);
        }
      };
      run(run, 0);
      return places;
    };
    const auto first = pass();
    const std::size_t held = arena.capacity();
    CHECK(pass() == first);
    CHECK(arena.capacity() == held);
  }
}

TEST_CASE("Arena: joins chunks when empty, later if memory is short") {
  const int allocations = Counting::allocations, releases = Counting::releases;
  {
    Arena arena;
    const auto grow = [&] {
      const auto inner = arena.mark();
      arena.scratch<char>(2 * kMegabyte);
      arena.scratch<char>(2 * kMegabyte);
    };
    {
      const auto outer = arena.mark();
      const View<char, 1, Counting> kept = arena.scratch<char>(1);
      kept(0) = 7;
      grow();
      CHECK(kept(0) == 7);
      CHECK(Counting::allocations - allocations == 3);
      Counting::short_of_memory = true;
    }
    Counting::short_of_memory = false;
    CHECK(arena.capacity() == 0);
    grow();
    CHECK(arena.capacity() == static_cast<std::size_t>(4 * kMegabyte + 256));
  }
  CHECK(Counting::releases - releases == Counting::allocations - allocations);
}

TEST_CASE("Arena: small requests share a chunk, empty requests work") {
  Arena arena;
  const auto mark = arena.mark();
  for (int i = 0; i < 1000; ++i) arena.scratch<double>(8);
  const View<double, 2, Counting> empty = arena.scratch<double>(0, 8);
  CHECK(empty.size() == 0);
  CHECK(empty.extent(1) == 8);
  CHECK(arena.capacity() == static_cast<std::size_t>(kMegabyte));
}

TEST_CASE("Arena: stays usable after a failed allocation") {
  const int allocations = Counting::allocations, releases = Counting::releases;
  {
    Arena arena;
    const auto mark = arena.mark();
    const View<int, 1, Counting> early = arena.scratch<int>(1);
    early(0) = 5;
    Counting::short_of_memory = true;
    CHECK_THROWS_AS(arena.scratch<char>(2 * kMegabyte), std::bad_alloc);
    Counting::short_of_memory = false;
    CHECK(early(0) == 5);
    CHECK(arena.scratch<char>(2 * kMegabyte).size() == 2 * kMegabyte);
  }
  CHECK(Counting::releases - releases == Counting::allocations - allocations);
}

#ifndef NDEBUG
TEST_CASE("Arena: debug builds poison only the memory that marks release") {
  Arena arena;
  const auto outer = arena.mark();
  const View<double, 1, Counting> kept = arena.scratch<double>(4);
  for (Index i = 0; i < 4; ++i) kept(i) = 1;
  View<double, 1, Counting> gone, far;
  {
    const auto mark = arena.mark();
    gone = arena.scratch<double>(4);
    far = arena.scratch<double>(kMegabyte);
    for (Index i = 0; i < 4; ++i) gone(i) = far(i) = 2;
    far(kMegabyte - 1) = 2;
  }
  for (const auto& v : {gone, far})
    detail_::address_sanitizer::unpoison(v.data(), static_cast<std::size_t>(v.size()) * 8);
  for (Index i = 0; i < 4; ++i) {
    CHECK(kept(i) == 1);
    CHECK(std::isnan(gone(i)));
    CHECK(std::isnan(far(i)));
  }
  CHECK(std::isnan(far(kMegabyte - 1)));
}
#endif

#ifndef NDEBUG
TEST_CASE("Arena: unwritten memory reads as NaN in debug builds") {
  Arena arena;
  for (int step = 0; step < 3; ++step) {
    const auto mark = arena.mark();
    for (const Index size : {10, 400000, 30}) {
      const View<float, 1, Counting> v = arena.scratch<float>(size);
      Index written = 0;
      for (Index i = 0; i < size; ++i) written += !std::isnan(v(i));
      CHECK(written == 0);
      for (Index i = 0; i < size; ++i) v(i) = 1;
    }
  }
}
#endif

namespace {

const std::string refused =
    "Context: thread: expected one at a time (use one context per thread), got a second thread while the first is "
    "inside a call";

/// Returns the message of what f() throws on another thread.
template <class F>
std::string elsewhere(const F& f) {
  return std::async(std::launch::async,
                    [&]() -> std::string {
                      try {
                        f();
                      } catch (const ArgumentError& error) {
                        return error.what();
                      }
                      return "";
                    })
      .get();
}

/// In row 0, calls for_each on a second thread with `ctx`, the context of the loop over rows.
struct InRows {
  std::string* said;
  Cpu::Context* ctx;
  Index* sum;
  template <class Lanes>
  void operator()(const Lanes&, Index row) const {
    if (row == 0) *said = elsewhere([&] { Cpu::for_each(*ctx, 1, [](Index) {}); });
    sum[row] = row;
  }
};

}  // namespace

TEST_CASE("OneThread: scopes nest in one thread, a second thread throws") {
  OneThread object;
  {
    const OneThread::Scope one(object), two(object);
    { const OneThread::Scope three(object); }
    CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == refused);
    CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == refused);  // scopes of this thread still count
  }
  CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == "");
  const OneThread::Scope again(object);
}

TEST_CASE("OneThread: an exception ends the scope") {
  OneThread object;
  const auto fail = [&] {
    const OneThread::Scope scope(object);
    throw 1;
  };
  CHECK_THROWS_AS(fail(), int);
  CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == "");
}

TEST_CASE("OneThread: using one context in two threads throws") {
  Cpu::Context ctx(2);
  {
    const auto mark = ctx.mark();
    CHECK(elsewhere([&] { const auto second = ctx.mark(); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_each(ctx, 100, [](Index) {}); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_rows(ctx, 100, [](const auto&, Index) {}); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_tasks(ctx, 4, [](Cpu::Context&, Index, Index) {}); }) == refused);
    double sum = 0;
    CHECK(elsewhere([&] {
            Cpu::reduce<double>(
                ctx, 10, [](Index) { return 1.0; }, &sum);
          }) == refused);
    std::array<float, 4> four{1, 2, 3, 4}, product{};
    const View<const float, 2, Cpu> a(four.data(), 2, 2);
    const View<float, 2, Cpu> c(product.data(), 2, 2);
    CHECK(elsewhere([&] { Cpu::gemm(ctx, a, false, a, false, false, c, functor::Store{}); }) == refused);
    Cpu::gemm(ctx, a, false, a, false, false, c, functor::Store{});  // the thread that holds the mark continues
    CHECK(product == std::array<float, 4>{7, 10, 15, 22});
    Cpu::Context other(2);
    CHECK(elsewhere([&] { Cpu::for_each(other, 100, [](Index) {}); }) == "");  // the other thread has its own context
  }
  CHECK(elsewhere([&] { Cpu::for_each(ctx, 100, [](Index) {}); }) == "");

  std::string said;
  Index sum[8];
  Cpu::for_rows(ctx, 8, InRows{&said, &ctx, sum});
  CHECK(said == refused);
}

TEST_CASE("for_tasks: only the calling thread may use the outer context") {
  Cpu::Context ctx(3, true);
  std::atomic<int> done = 0;
  Cpu::for_tasks(ctx, 12, [&](Cpu::Context& own, Index, Index count) {
    const auto mark = own.mark();
    auto some = own.scratch<float>(100);
    fill(own, some, 1.0f);
    done += static_cast<int>(count);
  });
  CHECK(done == 12);
  Cpu::for_tasks(ctx, 1, [&](Cpu::Context& own, Index, Index) { const auto mark = own.mark(); });
}

TEST_CASE("address_sanitizer: poison marks bytes exactly until unpoison") {
  alignas(8) char memory[64] = {};
  detail_::address_sanitizer::poison(memory, sizeof memory);
  CHECK(support::poisoned(memory) == support::address_sanitized);
  CHECK(support::poisoned(memory + 63) == support::address_sanitized);
  detail_::address_sanitizer::unpoison(memory, 35);
  CHECK(!support::poisoned(memory));
  CHECK(!support::poisoned(memory + 34));
  CHECK(support::poisoned(memory + 35) == support::address_sanitized);
  detail_::address_sanitizer::unpoison(memory, sizeof memory);
  CHECK(!support::poisoned(memory + 63));
}
