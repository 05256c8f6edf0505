#include "gatefold/backend/cpu/executor.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <gatefold/gatefold.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/forked.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;

namespace {

/// An executor that starts a thread for each worker number at each call.
struct Spawning {
  int most = 0;  // the largest count of one call
  void run(int count, cpu::WorkerFunction f) {
    most = std::max(most, count);
    std::vector<std::thread> threads;
    for (int i = 1; i < count; ++i) threads.emplace_back([=] { f(i); });
    f(0);
    for (auto& thread : threads) thread.join();
  }
};
/// An executor that runs the worker numbers from the last one down, on the calling thread.
struct Backwards {
  void run(int count, cpu::WorkerFunction f) {
    for (int i = count - 1; i >= 0; --i) f(i);
  }
};
/// An executor that runs the last worker number only.
struct Last {
  void run(int count, cpu::WorkerFunction f) { f(count - 1); }
};
struct Nobody {
  void run(int, cpu::WorkerFunction) {}
};
/// An executor that fails because it has no threads left.
struct Failing {
  void run(int, cpu::WorkerFunction f) {
    f(1);
    throw std::runtime_error("no threads");
  }
};
struct NotOne {
  void execute(int, cpu::WorkerFunction) {}
};

static_assert(cpu::Executor<Spawning> && cpu::Executor<Nobody> && cpu::Executor<cpu::ExecutorRef>);
static_assert(!cpu::Executor<NotOne> && !cpu::Executor<int>);

/// Returns the parameters after some steps of a training in which every part can run on several threads.
std::vector<float> trained(Cpu::Context& ctx) {
  const Index items = 300, dim = 24;
  Stack model{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                    Mlp<Gelu>{.model_dim = dim, .hidden_dim = 80}}},
              2};
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, items, dim),
             target = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, dim);
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 1e-2}, Seed{3}};
  for (int step = 0; step < 2; ++step) trainer.step(x, target);
  std::vector<float> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); },
                  trainer.params);
  return all;
}
/// The outputs of two layers for batches of some items.
std::vector<float> answers_of(Cpu::Context& ctx) {
  const Index dim = 64;
  const Stack model{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = 300}}},
                    2};
  Cpu::Context own(1);
  const auto params = init_params<float, Cpu>(model, own, Seed{4});
  std::vector<float> all;
  for (const Index items : {1, 2, 7, 16, 64, 300}) {
    const auto x = uniform_tensor<float>(own, Seed{5}, 1.0, items, dim);
    Tensor<float, 2, Cpu> y(items, dim);
    Carry<decltype(model), float, Cpu> carry;
    model.begin(ctx, params, items, carry);
    infer(model, ctx, params, x, carry, y);
    all.insert(all.end(), y.data(), y.data() + y.size());
  }
  return all;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("Executor: training has the same bits on any executor") {
  Cpu::Context alone(1);
  const auto expected = trained(alone);
  const auto check = [&](auto executor) {
    Cpu::Context ctx(executor, 3, true);
    CHECK(same_bits(trained(ctx), expected));
  };
  check(Spawning{});
  check(Backwards{});
  check(Last{});
  check(Nobody{});
  Spawning two;
  Cpu::Context ctx(two, 2, true);
  CHECK(same_bits(trained(ctx), expected));
  CHECK(two.most == 2);
  Cpu::Context own(3, true);
  CHECK(same_bits(trained(own), expected));
}

TEST_CASE("Executor: sharing changes no bits of training and inference") {
  // Counts the calls of run. The answers of pays() are the bits of `pattern`, one after the other.
  struct Counting : Spawning {
    std::uint32_t pattern = 0;
    int calls = 0, questions = 0;
    explicit Counting(std::uint32_t answers) : pattern(answers) {}
    void run(int count, cpu::WorkerFunction f) {
      ++calls;
      Spawning::run(count, f);
    }
    bool pays(double ns) {
      CHECK(ns >= 0);
      return pattern >> (questions++ % 32) & 1;
    }
  };
  Cpu::Context alone(1);
  const auto expected = trained(alone), inferred = answers_of(alone);
  for (const int threads : {2, 3})
    for (const std::uint32_t pattern : {0u, ~0u, 0x55555555u, 0x0f0ff0f0u, 0x8a53c6e1u}) {
      Counting executor(pattern);
      Cpu::Context ctx(executor, threads);
      CHECK(same_bits(trained(ctx), expected));
      CHECK(executor.questions > 0);
      const int before = executor.calls;
      CHECK(same_bits(answers_of(ctx), inferred));
      // Work that does not pay stays on the calling thread.
      if (pattern == 0) CHECK(executor.calls == before);
      if (pattern == ~0u) CHECK(executor.calls > before);
    }
}

TEST_CASE("Workers: small batches stay on the calling thread") {
  if (support::slow_build) return;  // small batches take long there
  struct Counting {
    cpu::Workers workers{3};
    int calls = 0;
    void run(int count, cpu::WorkerFunction f) {
      ++calls;
      workers.run(count, f);
    }
    bool pays(double ns) { return workers.pays(ns); }
  } executor;
  Cpu::Context ctx(executor, 3), alone(1);
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = 8, .hidden_dim = 8}};
  const auto params = init_params<float, Cpu>(layer, alone, Seed{1});
  for (const Index items : {1, 2, 4, 8}) {
    const auto x = uniform_tensor<float>(alone, Seed{2}, 1.0, items, 8);
    Tensor<float, 2, Cpu> y(items, 8), z(items, 8);
    infer(layer, ctx, params, x, y);
    infer(layer, alone, params, x, z);
    CHECK(std::memcmp(y.data(), z.data(), static_cast<std::size_t>(y.size()) * sizeof(float)) == 0);
    executor.calls = 0;
    for (int i = 0; i < 100; ++i) infer(layer, ctx, params, x, y);
    // A few calls are allowed, because another process can interrupt a time measurement and make it too long.
    CHECK(executor.calls <= 10);
  }
}

TEST_CASE("Executor: two contexts can share one executor") {
  Spawning executor;
  Cpu::Context a(executor, 2, true), b(executor, 3, true);
  const auto first = trained(a);
  CHECK(same_bits(first, trained(b)));
}

TEST_CASE("Cpu::Context: works in a child of fork()") {
  if (!support::may_fork) return;
  Cpu::Context ctx(3, true);
  const auto expected = trained(ctx);
  CHECK(support::in_child([&] { return same_bits(trained(ctx), expected) ? "same" : "other"; }) == "same");
  CHECK(support::in_child([] {
          Cpu::Context fresh(2, true);
          return std::to_string(trained(fresh).size());
        }) == std::to_string(expected.size()));
  CHECK(same_bits(trained(ctx), expected));
}

TEST_CASE("Cpu::Context: throws in a child of fork() if in use") {
  if (!support::may_fork) return;
  Cpu::Context ctx(2);
  std::atomic<bool> inside{false}, done{false};
  std::thread other([&] {
    Cpu::for_each(ctx, 1, [&](Index) {
      inside = true;
      while (!done) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  const std::string said = support::in_child([&] { return trained(ctx).empty() ? "none" : "trained"; });
  done = true;
  other.join();
  CHECK(said ==
        "Context: thread: expected one at a time (use one context per thread), got a second thread while the first is "
        "inside a call");
}

TEST_CASE("Executor: its exceptions reach the caller, the context stays usable") {
  Failing executor;
  Cpu::Context ctx(executor, 2, true);
  std::vector<int> done(100);
  int* p = done.data();
  CHECK_THROWS_WITH_AS(Cpu::for_each(ctx, 100, [=](Index i) { ++p[i]; }), "no threads", std::runtime_error);
  double sum = 0;
  Cpu::reduce<double>(
      ctx, 10, [](Index) { return 1.0; }, &sum);
  CHECK(sum == 10);
}

TEST_CASE("Cpu::Context: an executor needs a positive number of threads") {
  Nobody executor;
  CHECK_THROWS_WITH_AS(Cpu::Context(executor, 0), "Cpu::Context: threads: expected at least 1, got 0", ArgumentError);
  CHECK(Cpu::Context(executor, 7).threads() == 7);
}

TEST_CASE("WorkerFunction and ExecutorRef: refer to objects, do not copy") {
  int sum = 0;
  auto add = [&](int worker) { sum += worker + 1; };
  const cpu::WorkerFunction f = add, copy = f;
  f(1);
  copy(2);
  CHECK(sum == 5);
  Backwards backwards;
  const cpu::ExecutorRef ref = backwards;
  ref.run(3, f);
  CHECK(sum == 11);
  cpu::ExecutorRef(ref).run(1, f);
  CHECK(sum == 12);
}

TEST_CASE("ExecutorRef: pays() returns the executor's answer if it has one") {
  struct Picky : Nobody {
    bool pays(double ns) const { return ns > 7; }
  } picky;
  const cpu::ExecutorRef ref = picky;
  CHECK(!ref.pays(7));
  CHECK(ref.pays(8));
  Nobody silent;
  CHECK(!cpu::ExecutorRef(silent).pays(19'999));
  CHECK(cpu::ExecutorRef(silent).pays(20'000));
}
