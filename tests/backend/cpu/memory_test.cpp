#include "gatefold/backend/cpu/memory.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

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
