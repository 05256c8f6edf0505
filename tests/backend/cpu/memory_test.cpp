#include "gatefold/backend/cpu/memory.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

using namespace gatefold;

TEST_CASE("Cpu memory: begins at a cache line, all bytes usable") {
  for (const std::size_t bytes : {std::size_t(1), std::size_t(100), std::size_t(1) << 20, (std::size_t(5) << 20) + 3}) {
    void* p = cpu::allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(p) % cpu::line_size == 0);
    std::memset(p, 1, bytes);
    cpu::release(p);
  }
  cpu::release(nullptr);
}

TEST_CASE("Prefetch: begins at the given part or its first row") {
  std::vector<float> data(4096);
  const char* begin = reinterpret_cast<const char*>(data.data());
  for (Index t = 0; t < 4; ++t) {
    const auto all = cpu::Prefetch::part(data.data(), 4096, t, 4);
    CHECK(all.first.next == begin + t * 4096);
    // 10 rows of 136 bytes, 512 bytes apart, have 3 cache lines each: 30 lines. Part t of four begins with line 0, 7,
    // 15 or 22.
    const auto rows = cpu::Prefetch::rows(data.data(), 10, 136, 512, t, 4);
    CHECK(rows.first.next == begin + (t == 0 ? 0 : t == 1 ? 2 : t == 2 ? 5 : 7) * 512);
    CHECK(rows.first.run == 3);
    CHECK(rows.first.jump == 512 - 2 * 64);
    // 4 other rows of 2 cache lines each, 256 bytes apart, come before these 10 rows.
    const auto both = rows.after_rows(data.data() + 2048, 4, 128, 256);
    CHECK(both.first.next == begin + 2048 * sizeof(float));
    CHECK(both.first.run == 2);
    CHECK(both.first.jump == 256 - 64);
    CHECK(both.count == 8);
    CHECK(both.then.next == rows.first.next);
    CHECK(both.then.run == 3);
  }
}
