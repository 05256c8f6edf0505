// Tests the device's allocations: alignment, poison, ranges, failures, and the messages for wrong addresses.
#include "cuda_emulator/memory.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;

TEST_CASE("Memory: is aligned to 256 bytes, poisoned, counted while alive") {
  Memory memory;
  auto* a = static_cast<unsigned char*>(memory.allocate(100));
  auto* b = static_cast<unsigned char*>(memory.allocate(1));
  REQUIRE(a != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 256 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(b) % 256 == 0);
  for (int i = 0; i < 100; ++i) CHECK(a[i] == 0xCB);
  CHECK(memory.live() == 2);
  CHECK(memory.live_bytes() == 101);
  CHECK(memory.release(a));
  CHECK(memory.live() == 1);
  CHECK(memory.live_bytes() == 1);
  CHECK(memory.peak_bytes() == 101);
  memory.reset_peak();
  CHECK(memory.peak_bytes() == 1);
}

TEST_CASE("Memory: contains only ranges within one live allocation") {
  Memory memory;
  auto* a = static_cast<char*>(memory.allocate(100));
  CHECK(memory.contains(a, 100));
  CHECK(memory.contains(a + 99, 1));
  CHECK(!memory.contains(a, 101));
  CHECK(!memory.contains(a + 100, 1));
  CHECK(!memory.contains(a - 1, 2));
  CHECK(!memory.contains(a + 50, ~std::size_t{0}));
  memory.release(a);
  CHECK(!memory.contains(a, 1));
}

TEST_CASE("Memory: releases only the start of an allocation, once") {
  Memory memory;
  auto* a = static_cast<char*>(memory.allocate(100));
  CHECK(!memory.release(a + 4));
  CHECK(memory.release(a));
  CHECK(!memory.release(a));
}

TEST_CASE("Memory: fail_at fails only the nth allocation from now") {
  Memory memory;
  memory.fail_at(1);
  CHECK(memory.allocate(8) != nullptr);
  CHECK(memory.allocate(8) == nullptr);
  CHECK(memory.allocate(8) != nullptr);
  memory.fail_at(0);
  CHECK(memory.reserve(8) == nullptr);
  memory.fail_at(0);
  memory.fail_at(-1);
  CHECK(memory.allocate(8) != nullptr);
  CHECK(memory.live() == 3);
}

TEST_CASE("Memory: reserves more address space than the machine has") {
  Memory memory;
  const std::size_t huge = std::size_t{1} << 36;
  auto* base = static_cast<char*>(memory.reserve(huge));
  REQUIRE(base != nullptr);
  CHECK(memory.contains(base + huge - 1, 1));
  base[huge - 1] = 7;
  CHECK(base[huge - 1] == 7);
  CHECK(base[huge / 2] == 0);
}

TEST_CASE("Memory: add_global and remove_global register foreign memory") {
  Memory memory;
  int variable = 0;
  memory.add_global(&variable, sizeof variable);
  CHECK(memory.contains(&variable, 4));
  CHECK(memory.live() == 0);
  CHECK(!memory.release(&variable));
  memory.remove_global(&variable);
  CHECK(!memory.contains(&variable, 4));
}

TEST_CASE("Memory: describes a wrong address by its nearest allocation") {
  Memory memory;
  const auto base = reinterpret_cast<std::uintptr_t>(memory.allocate(400));
  CHECK(memory.describe(base + 464) == "64 bytes past the end of an allocation of 400 bytes");
  CHECK(memory.describe(base - 8) == "8 bytes before the start of an allocation of 400 bytes");
  CHECK(memory.describe(base + 398) == "reaching past the end of an allocation of 400 bytes");
  CHECK(memory.describe(16) == "in no live allocation");
}
