#include "gatefold/tensor/deferred_zeros.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/tensor/copy_stamp.hpp"

using namespace gatefold;

namespace {

/// A Cpu backend that counts how often zeros are written.
struct Counting : cpu::Primitives<Counting, AsTheyAre> {
  static inline std::atomic<int> written{0};
  static void write_zeros(Context& ctx, void* p, std::size_t bytes) {
    ++written;
    cpu::Primitives<Counting, AsTheyAre>::write_zeros(ctx, p, bytes);
  }
};
using Rank3 = Tensor<float, 3, Counting>;

/// A tensor of 24 sevens whose zeros are deferred. `raw` shows the elements in memory.
struct Deferred {
  Counting::Context ctx{1};
  Rank3 t{2, 3, 4};
  float* raw = t.data();

  Deferred() {
    std::fill_n(raw, 24, 7.f);
    t.defer_zeros(ctx);
    Counting::written = 0;
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
    CHECK(Counting::written == 1);
  };
  written_by([](Rank3& t) { t.view(); });
  written_by([](Rank3& t) { t.data(); });
  written_by([](Rank3& t) { t(1, 2, 3); });
  written_by([](Rank3& t) { [[maybe_unused]] const View<float, 3, Counting> v = t; });
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
  refused([](const Rank3& t) { [[maybe_unused]] const View<const float, 3, Counting> v = t; });
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
  CHECK(Counting::written == 0);
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
    CHECK(Counting::written == 1);
  }
}

TEST_CASE("set_zero_later: defers only the zeros of rank-3 tensors") {
  Counting::Context ctx(1);
  Tensor<float, 2, Counting> matrix(2, 2);
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

TEST_CASE("deferred zeros: only rank-3 tensors grow in size") {
  CHECK(sizeof(Tensor<float, 2, Counting>) == sizeof(View<float, 2, Counting>) + sizeof(Index));
  CHECK(sizeof(Rank3) == sizeof(View<float, 3, Counting>) + sizeof(Index) + sizeof(void*) + sizeof(CopyStamp));
}
