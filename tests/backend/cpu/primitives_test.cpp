#include "gatefold/backend/cpu/primitives.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

TEST_CASE("Cpu: copies between host and backend") {
  Cpu::Context ctx;
  const std::vector<double> x{1, 2, 3};
  std::vector<double> y(3), z(3);
  Cpu::from_host(ctx, 3, x.data(), y.data());
  Cpu::to_host(ctx, 3, y.data(), z.data());
  CHECK(x == z);
  Cpu::to_host<double>(ctx, 0, nullptr, nullptr);
}

TEST_CASE("Cpu: memory is aligned to a cache line, poison works") {
  void* p = Cpu::allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
  Cpu::poison(p, 100);
  CHECK(static_cast<unsigned char*>(p)[99] == 0xff);
  Cpu::release(p);
}
