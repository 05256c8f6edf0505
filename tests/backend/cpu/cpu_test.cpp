#include "gatefold/backend/cpu/cpu.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace gatefold;

TEST_CASE("a context has the threads it is given, or all") {
  CHECK(Cpu::Context(3).threads() == 3);
  CHECK(Cpu::Context().threads() == cpu::available_threads());
  CHECK(Cpu::Context(0).threads() >= 1);
}

TEST_CASE("copies between host and backend") {
  Cpu::Context ctx;
  const std::vector<double> x{1, 2, 3};
  std::vector<double> y(3), z(3);
  Cpu::from_host(ctx, 3, x.data(), y.data());
  Cpu::to_host(ctx, 3, y.data(), z.data());
  CHECK(x == z);
  Cpu::to_host<double>(ctx, 0, nullptr, nullptr);
}

TEST_CASE("memory is aligned to a cache line and can be poisoned") {
  void* p = Cpu::allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
  Cpu::poison(p, 100);
  CHECK(static_cast<unsigned char*>(p)[99] == 0xff);
  Cpu::release(p);
}

TEST_CASE("packed weights are in use as long as what use() returned lives, then those before") {
  Cpu::Context ctx(1);
  const std::vector<float> w(6, 1);
  cpu::PackedWeights outer, inner;
  outer.add(ctx, w.data(), 1, 2, 3, false);
  inner.add(ctx, w.data(), 1, 2, 3, false);
  CHECK(!ctx.packed(w.data()));
  {
    const auto first = ctx.use(outer);
    {
      const auto second = ctx.use(inner);
      CHECK(ctx.packed(w.data()).full == inner.find(w.data()).full);
    }
    CHECK(ctx.packed(w.data()).full == outer.find(w.data()).full);
  }
  CHECK(!ctx.packed(w.data()));
}

TEST_CASE("the backend satisfies the porting contract") { static_assert(Backend<Cpu>); }
