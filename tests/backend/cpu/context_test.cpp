#include "gatefold/backend/cpu/context.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

TEST_CASE("Cpu::Context: has the given number of threads, default all") {
  CHECK(Cpu::Context(3).threads() == 3);
  CHECK(Cpu::Context().threads() == cpu::available_threads());
  CHECK(Cpu::Context(0).threads() >= 1);
  CHECK(Cpu::Context(32767).threads() == 32767);  // no thread is started before it is needed
  CHECK_THROWS_WITH_AS(Cpu::Context(40000), "Cpu::Context: threads: expected at most 32767, got 40000", ArgumentError);
}

TEST_CASE("Cpu::Context: use() selects packed weights while its result lives") {
  Cpu::Context ctx(1);
  const std::vector<float> w(6, 1);
  cpu::PackedWeights outer, inner;
  outer.add<float>(ctx, w.data(), 1, 2, 3, Weights::unchanged);
  inner.add<float>(ctx, w.data(), 1, 2, 3, Weights::unchanged);
  CHECK(!ctx.packed<float>(w.data()));
  {
    const auto first = ctx.use(outer);
    {
      const auto second = ctx.use(inner);
      CHECK(ctx.packed<float>(w.data()).full == inner.find<float>(w.data()).full);
    }
    CHECK(ctx.packed<float>(w.data()).full == outer.find<float>(w.data()).full);
  }
  CHECK(!ctx.packed<float>(w.data()));
}
