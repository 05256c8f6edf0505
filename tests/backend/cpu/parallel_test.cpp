#include "gatefold/backend/cpu/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/thread_pool.hpp"

using namespace gatefold;

namespace {

cpu::Workers executor(8);

/// Returns the order in which one worker, running alone, does `tasks` tasks meant for `threads` threads.
std::vector<Index> order_of(int worker, int threads, Index tasks) {
  struct Only {
    int worker;
    void run(int, cpu::WorkerFunction f) { f(worker); }
  } only{worker};
  std::vector<Index> order;
  cpu::parallel_for(only, threads, tasks, [&](Index task, int by) {
    CHECK(by == worker);
    order.push_back(task);
  });
  return order;
}

/// An executor that runs every worker number in turn and remembers how many there were.
struct InTurn {
  int count = 0;
  void run(int n, cpu::WorkerFunction f) {
    count = n;
    for (int worker = 0; worker < n; ++worker) f(worker);
  }
};

}  // namespace

TEST_CASE("parallel_for: runs every task once with worker numbers below threads") {
  for (const int threads : {1, 2, 3, 8})
    for (const Index tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::atomic<int> bad{0};
      cpu::parallel_for(executor, threads, tasks, [&](Index task, int worker) {
        ++runs[static_cast<std::size_t>(task)];
        if (worker < 0 || worker >= threads) ++bad;
      });
      CHECK(bad == 0);
      for (const auto& n : runs) CHECK(n == 1);
    }
}

TEST_CASE("parallel_for: requests min(threads, tasks) workers") {
  InTurn in_turn;
  cpu::parallel_for(in_turn, 3, 100, [](Index, int) {});
  CHECK(in_turn.count == 3);
  cpu::parallel_for(in_turn, 8, 5, [](Index, int) {});
  CHECK(in_turn.count == 5);
}

TEST_CASE("parallel_for: a worker runs its own part first") {
  CHECK(order_of(0, 3, 7) == std::vector<Index>{0, 1, 2, 3, 4, 5, 6});
  CHECK(order_of(1, 3, 7) == std::vector<Index>{2, 3, 4, 5, 6, 0, 1});
  CHECK(order_of(2, 3, 7) == std::vector<Index>{4, 5, 6, 0, 1, 2, 3});
  CHECK(order_of(3, 8, 4) == std::vector<Index>{3, 0, 1, 2});  // no more workers than tasks
  // parallel_for divides the tasks into at most 64 parts.
  for (const auto& [worker, first] : {std::pair{0, 0}, {1, 0}, {50, 500}, {98, 968}, {99, 984}}) {
    const std::vector<Index> order = order_of(worker, 100, 1000);
    CHECK(order[0] == first);
    for (std::size_t i = 0; i < order.size(); ++i)
      CHECK(order[i] == (first + static_cast<Index>(i)) % static_cast<Index>(order.size()));
  }
}

TEST_CASE("parallel_for: an exception of a task reaches the caller") {
  for (const int threads : {1, 4}) {
    const auto run = [&] {
      cpu::parallel_for(executor, threads, 100, [](Index task, int) {
        if (task % 10 == 3) throw std::runtime_error("task");
      });
    };
    CHECK_THROWS_AS(run(), std::runtime_error);
  }
}

TEST_CASE("parallel_for: two threads may call it at once") {
  std::atomic<Index> sum{0};
  const auto run = [&] {
    for (int i = 0; i < 50; ++i) cpu::parallel_for(executor, 2, 20, [&](Index task, int) { sum += task; });
  };
  std::thread a(run), b(run);
  a.join();
  b.join();
  CHECK(sum == 2 * 50 * 190);
}

namespace {

/// Runs every worker number in turn. pays() stores the time of the work and returns the given answer.
struct Answers : InTurn {
  explicit Answers(bool always) : answer(always) {}
  bool answer;
  int questions = 0;
  double ns = -1;
  bool pays(double time) {
    ++questions;
    ns = time;
    return answer;
  }
};

/// The ranges of a loop in the order in which they are computed.
std::vector<std::pair<Index, Index>> ranges_of(Answers& answers, int threads, const cpu::Ranges& ranges) {
  std::vector<std::pair<Index, Index>> all;
  cpu::parallel_ranges(answers, threads, ranges, [&](Index begin, Index end) { all.emplace_back(begin, end); });
  return all;
}

}  // namespace

TEST_CASE("parallel_ranges: computes each element once in whole lines") {
  for (const bool answer : {false, true})
    for (const int threads : {1, 2, 3})
      for (const Index line : {1, 64})
        for (const Index size : {0, 1, 63, 64, 65, 1000, 4099})
          for (const Index sample : {Index(0), line, 3 * line}) {
            if (sample >= size && sample > 0) continue;
            for (const Index chunk : {line, 5 * line, 100 * line}) {
              Answers answers(answer);
              std::vector<int> runs(static_cast<std::size_t>(size));
              for (const auto& [begin, end] : ranges_of(answers, threads, {size, chunk, sample, line})) {
                CHECK(begin % line == 0);
                for (Index i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
              }
              CHECK(runs == std::vector<int>(static_cast<std::size_t>(size), 1));
              CHECK(answers.questions == (threads > 1 && sample > 0 ? 1 : 0));
            }
          }
}

TEST_CASE("parallel_ranges: runs on the caller if pays() is false") {
  Answers refuses(false);
  CHECK(ranges_of(refuses, 3, {100, 10, 6}) == std::vector<std::pair<Index, Index>>{{47, 53}, {0, 47}, {53, 100}});
  CHECK(refuses.count == 0);
  Answers agrees(true);
  CHECK(ranges_of(agrees, 3, {100, 10, 6})[0] == std::pair<Index, Index>{47, 53});
  CHECK(agrees.count == 3);
  // Without a sample the loop is always shared.
  CHECK(ranges_of(refuses, 3, {100, 50}) == std::vector<std::pair<Index, Index>>{{0, 50}, {50, 100}});
  CHECK(refuses.count == 2);
}

TEST_CASE("parallel_ranges: estimates the remaining time from a sample") {
  Answers answers(false);
  const auto wait = [](Index, Index) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  cpu::parallel_ranges(answers, 2, {1000, 10, 10}, wait);
  CHECK(answers.ns >= 0.9 * 99 * 2e6);
}
