#include "gatefold/backend/cpu/thread_pool.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/parallel.hpp"
#include "support/forked.hpp"

using namespace gatefold;
using namespace gatefold::cpu;

using cpu::Workers;

namespace {

/// Returns whether `count` workers run f at the same time. Each waits for the others for at most twenty seconds.
bool all_come(Workers& workers, int count) {
  std::atomic<int> here{0}, missed{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto meet = [&](int) {
    ++here;
    while (here < count)
      if (std::chrono::steady_clock::now() > end) {
        ++missed;
        return;
      } else {
        std::this_thread::yield();
      }
  };
  workers.run(count, meet);
  return missed == 0 && here == count;
}

/// Returns the sum of the task numbers that parallel_for ran.
Index sum_of_tasks(Workers& workers, int threads, Index tasks) {
  std::atomic<Index> sum{0};
  cpu::parallel_for(workers, threads, tasks, [&](Index task, int) { sum += task; });
  return sum;
}

}  // namespace

TEST_CASE("Workers: each call gets distinct worker numbers below the limit") {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    for (const int count : {0, 1, 2, 3, 8, 100}) {
      std::vector<std::atomic<int>> calls(100);
      const auto f = [&](int worker) { ++calls[static_cast<std::size_t>(worker)]; };
      for (int i = 0; i < 50; ++i) workers.run(count, f);
      CHECK(calls[0] == 50);
      for (int i = 1; i < 100; ++i)
        CHECK(calls[static_cast<std::size_t>(i)] <= (i < std::min(count, threads) ? 50 : 0));
    }
    CHECK(all_come(workers, threads));
  }
}

TEST_CASE("Workers: many short calls run every task once") {
  Workers workers(3);
  bool all = true;
  for (int i = 0; i < 20000; ++i) {
    const Index tasks = 2 + i % 5;
    all = all && sum_of_tasks(workers, 3, tasks) == tasks * (tasks - 1) / 2;
  }
  CHECK(all);
}

TEST_CASE("Workers: wakes threads that sleep or begin to sleep") {
  Workers workers(3);
  for (int i = 0; i < 60; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(i % 20 * 20));  // they spin for 200 µs
    REQUIRE(all_come(workers, i % 2 ? 3 : 2));
  }
}

TEST_CASE("Workers: the destructor ends unstarted, spinning and sleeping threads") {
  for (int i = 0; i < 30; ++i) {
    auto workers = std::make_unique<Workers>(3);
    if (i % 3 > 0) CHECK(sum_of_tasks(*workers, 3, 10) == 45);
    if (i % 3 > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("Workers: nested and concurrent calls run without waiting") {
  Workers workers(3);
  std::atomic<Index> sum{0};
  cpu::parallel_for(workers, 3, 8, [&](Index, int) {
    cpu::parallel_for(workers, 3, 10, [&](Index task, int worker) {
      sum += task;
      if (worker != 0) sum += 1000;  // an inner call runs only on the thread of its task
    });
  });
  CHECK(sum == 8 * 45);

  std::atomic<int> wrong{0};
  const auto run = [&] {
    for (int i = 0; i < 500; ++i) wrong += sum_of_tasks(workers, 3, 20) != 190;
  };
  std::thread a(run), b(run);
  a.join();
  b.join();
  CHECK(wrong == 0);
  CHECK(all_come(workers, 3));
}

TEST_CASE("Workers: stay usable after an exception") {
  Workers workers(3);
  for (int i = 0; i < 20; ++i) {
    CHECK_THROWS_WITH(cpu::parallel_for(workers, 3, 50,
                                        [&](Index task, int) {
                                          if (task == 20) throw Error("task");
                                        }),
                      "task");
    CHECK(sum_of_tasks(workers, 3, 10) == 45);
  }
  CHECK(all_come(workers, 3));
}

TEST_CASE("Workers: threads block signals; the caller's mask is unchanged") {
  Workers workers(2);
  sigset_t own, masks[2];
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  std::atomic<int> here{0};
  const auto ask = [&](int worker) {
    pthread_sigmask(SIG_SETMASK, nullptr, &masks[worker]);
    ++here;
    while (here < 2) std::this_thread::yield();
  };
  workers.run(2, ask);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
    CHECK(sigismember(&masks[1], signal) == 1);
    CHECK(sigismember(&masks[0], signal) == sigismember(&own, signal));
  }
}

TEST_CASE("Workers: after fork() parent and child have their own threads") {
  if (!support::may_fork) return;
  const auto use = [](Workers& workers) {
    std::string said;
    for (int i = 0; i < 3; ++i) said += std::to_string(sum_of_tasks(workers, 3, 10)) + " ";
    return said + (all_come(workers, 3) ? "all" : "not all");
  };
  for (const int pause : {0, 1000}) {  // µs: fork while the threads spin, and while they sleep
    auto workers = std::make_unique<Workers>(3);
    for (int i = 0; i < 3; ++i) {
      CHECK(sum_of_tasks(*workers, 3, 10) == 45);
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      CHECK(support::in_child([&] { return use(*workers); }) == "45 45 45 all");
      // Checks a child of a child, and a child that destroys the Workers object with or without using it first.
      const bool used = i % 2 == 1;
      const std::string expected = "45 45 45 all";
      CHECK(support::in_child([&] {
              std::string said = support::in_child([&] { return use(*workers); });
              if (used) said += use(*workers);
              workers.reset();
              return said;
            }) == (used ? expected + expected : expected));
      CHECK(all_come(*workers, 3));
    }
  }
}

TEST_CASE("Workers: fork() in a task continues without threads or throws") {
  if (!support::may_fork) return;
  Workers workers(2);
  for (const bool at_work : {false, true}) {
    std::atomic<bool> joined{false}, done{false};
    pid_t child = -1;
    const pid_t parent = getpid();
    std::string said;
    const auto f = [&](int worker) {
      if (worker == 1) {
        joined = true;
        while (!done) std::this_thread::yield();
        return;
      }
      while (!joined) std::this_thread::yield();
      if (!at_work) {
        done = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the other worker has left
      }
      child = fork();
      if (child == 0) alarm(20);
      done = true;
    };
    try {
      workers.run(2, f);
      said = "goes on";
    } catch (const Error& error) {
      said = error.what();
    }
    if (getpid() != parent) {
      const bool right =
          at_work
              ? said == "Workers.run: fork() inside a parallel task: the child process does not have the worker threads"
              : said == "goes on";
      _exit(right && sum_of_tasks(workers, 2, 10) == 45 && all_come(workers, 2) ? 0 : 1);
    }
    CHECK(said == "goes on");
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(all_come(workers, 2));
  }
}

TEST_CASE("Workers: the caller does the work if threads cannot start") {
  if (!support::may_fork || !support::may_limit_memory) return;
  CHECK(support::in_child([] {
          Workers workers(3);
          const rlimit none{1 << 20, 1 << 20};  // bytes of address space: fewer than the process has
          setrlimit(RLIMIT_AS, &none);
          return std::to_string(sum_of_tasks(workers, 3, 10)) + " " + std::to_string(sum_of_tasks(workers, 3, 10));
        }) == "45 45");
}

TEST_CASE("available_threads: returns OMP_NUM_THREADS, or usable processors") {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before ? before : "";
  for (const auto& [wish, threads] : {std::pair{"3", 3}, {"5,2", 5}, {"99999", 1024}}) {
    setenv("OMP_NUM_THREADS", wish, 1);
    CHECK(cpu::available_threads() == threads);
  }
  for (const char* wish : {"", "0", "-2", "many"}) {
    setenv("OMP_NUM_THREADS", wish, 1);
    CHECK(cpu::available_threads() == cpu::usable_processors());
  }
  if (before)
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  else
    unsetenv("OMP_NUM_THREADS");
}

TEST_CASE("Workers: pays() is true only for long work") {
  Workers alone(1);
  CHECK(!alone.pays(1e12));
  Workers workers(2);
  CHECK(!workers.pays(0));
  CHECK(workers.pays(1e9));  // waking the thread is assumed to take 30 µs
  CHECK(!workers.pays(10));
  CHECK(all_come(workers, 2));
  CHECK(workers.pays(1e9));
  CHECK(!workers.pays(10));
}

TEST_CASE("Workers: pays() adds up short work until threads are woken") {
  if (cpu::usable_processors() < 2) return;  // with more threads than processors, pays() does not add up
  // The first call starts the thread, which then spins for 200 µs before it sleeps.
  const auto let_sleep = [](Workers& pool) {
    CHECK(!pool.pays(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  Workers workers(2);
  let_sleep(workers);
  int calls = 0;
  for (int i = 0; i < 100 && calls == 0; ++i)
    if (workers.pays(20'000)) calls = i + 1;  // each call saves at most 10 µs of the assumed 30 µs
  CHECK(calls >= 3);
  // After a pause in which the thread falls asleep again, pays() adds up from 0.
  Workers paused(2);
  let_sleep(paused);
  for (int i = 0; i < 20; ++i) {
    CHECK(!paused.pays(20'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("Workers: pays() is false during a running call") {
  Workers workers(2);
  bool inside = true;
  const auto f = [&](int worker) {
    if (worker == 0) inside = workers.pays(1e9);
  };
  workers.run(2, f);
  CHECK(!inside);
  CHECK(workers.pays(1e9));
}

namespace {

/// Whether the calling thread would receive the signal.
bool receives(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 0;
}

}  // namespace

TEST_CASE("process_id: constant in a process, different in its child") {
  const long here = process_id();
  CHECK(here > 0);
  CHECK(process_id() == here);
  const pid_t child = fork();
  if (child == 0) _exit(process_id() == here ? 1 : 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("SignalsBlocked: threads started in its scope keep signals blocked") {
  REQUIRE(receives(SIGINT));
  std::thread started;
  bool inside = true, of_started = true;
  {
    const SignalsBlocked blocked;
    inside = receives(SIGINT) || receives(SIGTERM);
    started = std::thread([&] { of_started = receives(SIGINT) || receives(SIGTERM); });
  }
  started.join();
  CHECK_FALSE(inside);
  CHECK_FALSE(of_started);
  CHECK(receives(SIGINT));
  CHECK(receives(SIGTERM));
}
