#include "gatefold/backend/cpu/context.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

TEST_CASE("Cpu::Context: has the given number of threads, by default all") {
  CHECK(Cpu::Context(3).threads() == 3);
  CHECK(Cpu::Context().threads() == cpu::available_threads());
  CHECK(Cpu::Context(0).threads() >= 1);
  CHECK(Cpu::Context(32767).threads() == 32767);  // no thread is started before it is needed
  CHECK_THROWS_WITH_AS(Cpu::Context(40000), "Cpu::Context: threads: expected at most 32767, got 40000", ArgumentError);
}

TEST_CASE("Cpu::Context: use() selects packed weights until its result ends") {
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

namespace {

/// An executor that shares work of at least 100 ns.
struct From100 {
  void run(int, cpu::WorkerFunction f) { f(0); }
  bool pays(double ns) { return ns >= 100; }
};
auto work(double ns) {
  return [ns] { return ns; };
}

}  // namespace

TEST_CASE("Cpu::Context: work too short for sharing gets one thread") {
  From100 executor;
  const Cpu::Context ctx(executor, 3), alone(executor, 1), eager(executor, 3, true);
  CHECK(ctx.threads_for(work(99)) == 1);
  CHECK(ctx.threads_for(work(100)) == 3);
  CHECK(alone.threads_for(work(1e9)) == 1);
  CHECK(eager.threads_for(work(0)) == 3);
}
