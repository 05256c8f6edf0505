#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A reference to the function f(task, worker) that parallel_for runs. f must outlive this object. The type of f is
/// erased, so that the code that distributes tasks (run_tasks) is compiled once for all functions.
class TaskFunction {
 public:
  template <class F>
  static TaskFunction of(const F& f) {
    return {std::addressof(f),
            [](const void* p, Index task, int worker) { (*static_cast<const F*>(p))(task, worker); }};
  }
  void operator()(Index task, int worker) const { call_(f_, task, worker); }

 private:
  TaskFunction(const void* f, void (*call)(const void*, Index, int)) : f_(f), call_(call) {}

  const void* f_;
  void (*call_)(const void*, Index, int);
};

/// Does the work of parallel_for for a function f whose type is erased. It is a template, so that the library
/// gatefold::kernels can contain its code (kernels.hpp).
template <class E>
void run_tasks(E executor, int threads, Index tasks, TaskFunction f) {
  if (threads <= 1 || tasks <= 1) {
    for (Index task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  const int count = static_cast<int>(tasks < threads ? tasks : threads);
  constexpr int most_parts = 64;
  const int parts = std::min(count, most_parts);
  const auto begin = [&](int part) { return part * tasks / parts; };
  // The tasks are divided into parts. next[i] is the number of the next task of part i to run.
  std::atomic<Index> next[most_parts];
  for (int part = 0; part < parts; ++part) next[part].store(begin(part), std::memory_order_relaxed);
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  const auto work = [&](int worker) noexcept {
    GATEFOLD_ASSERT(0 <= worker && worker < count, "parallel_for: worker number out of range");
    try {
      for (int i = 0, part = worker * parts / count; i < parts; ++i, part = (part + 1) % parts) {
        const Index end = begin(part + 1);
        while (next[part].load(std::memory_order_relaxed) < end)
          if (const Index task = next[part].fetch_add(1, std::memory_order_relaxed); task < end) f(task, worker);
      }
    } catch (...) {
      for (int part = 0; part < parts; ++part) next[part] = tasks;
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  executor.run(count, work);
  work(0);
  if (error) std::rethrow_exception(error);
}

/// Calls f(task, worker) for each task from 0 to tasks - 1, on at most `threads` threads of the executor. `worker` is
/// the number of the thread and less than `threads`.
///
/// A worker starts with its own part of the tasks, in increasing order, and then helps with the other parts. If several
/// calls work on the same rows, a worker therefore finds its earlier results in its caches. Tried: one queue for all
/// workers; on two processors, large layers were 2 % and small models 6 % slower.
///
/// The first exception that a task throws stops the distribution of tasks and is rethrown on the calling thread. The
/// calling thread runs tasks too, and all tasks that the executor's threads do not take.
/// @order  a task can run on a different thread in each call, so results of f must not depend on `worker`
template <class F>
void parallel_for(ExecutorRef executor, int threads, Index tasks, const F& f) {
  run_tasks(executor, threads, tasks, TaskFunction::of(f));
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
