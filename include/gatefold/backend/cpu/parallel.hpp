#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/ticks.hpp"
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
/// less than `threads`; calls of f that run at the same time have different values of `worker`.
///
/// A worker starts with its own part of the tasks, in increasing order, and then helps with the other parts. If several
/// calls work on the same rows, a worker therefore finds its earlier results in its caches. Tried: one queue for all
/// workers; on two processors, large layers were 2 % and small models 6 % slower.
///
/// The first exception that a task throws stops the distribution of tasks and is rethrown on the calling thread. The
/// calling thread runs tasks too: at least all tasks that the threads of the executor do not run.
/// @order  a task can run on a different thread in each call, so results of f must not depend on `worker`
template <class F>
void parallel_for(ExecutorRef executor, int threads, Index tasks, const F& f) {
  run_tasks(executor, threads, tasks, TaskFunction::of(f));
}

/// A reference to the function f(begin, end) that computes the elements of a loop from `begin` to `end` - 1. f must
/// outlive this object. The type of f is erased for the same reason as in TaskFunction.
class RangeFunction {
 public:
  template <class F>
  static RangeFunction of(const F& f) {
    return {std::addressof(f), [](const void* p, Index begin, Index end) { (*static_cast<const F*>(p))(begin, end); }};
  }
  void operator()(Index begin, Index end) const { call_(f_, begin, end); }

 private:
  RangeFunction(const void* f, void (*call)(const void*, Index, Index)) : f_(f), call_(call) {}

  const void* f_;
  void (*call_)(const void*, Index, Index);
};

/// The size of a loop and of the ranges into which parallel_ranges divides it.
struct Ranges {
  Index size;        // number of elements of the loop
  Index chunk;       // number of elements of a task
  Index sample = 0;  // number of elements with which the time of the loop is estimated; 0: no estimate
  Index line = 1;    // ranges begin at multiples of this number if `chunk` and `sample` are multiples of it
};

/// Does the work of parallel_ranges for a function f whose type is erased.
template <class E>
void run_ranges(E executor, int threads, Ranges ranges, RangeFunction f) {
  if (threads <= 1) return f(0, ranges.size);
  // The sample is in the middle, because the first rows of a loop can have less work than the others, for example if
  // a row has as many terms as rows precede it.
  const Index sample = ranges.sample, rest = ranges.size - sample, at = rest / 2 / ranges.line * ranges.line;
  if (sample > 0) {
    const std::int64_t begin = Ticks::now();
    f(at, at + sample);
    if (!executor.pays(Ticks::since(begin) * static_cast<double>(rest) / static_cast<double>(sample))) {
      if (at > 0) f(0, at);
      return f(at + sample, ranges.size);
    }
  }
  parallel_for(executor, threads, divide_up(rest, ranges.chunk), [&](Index task, int) {
    const Index begin = task * ranges.chunk, end = std::min(rest, begin + ranges.chunk);
    if (begin < at) f(begin, std::min(end, at));
    if (end > at) f(std::max(begin, at) + sample, end + sample);
  });
}

/// Calls f(begin, end) for ranges that cover the elements of a loop, on at most `threads` threads of the executor. If
/// the loop has a sample, the calling thread first computes that many elements and measures the time. If
/// executor.pays() then returns false, the calling thread also computes the other elements.
///
/// Tried: remembering the times of a loop between calls, so that its decisions do not change from call to call. Batches
/// of a small language model then took 3 % to 10 % longer.
/// @order  f must not depend on the division into ranges, because the division depends on measured times
template <class F>
void parallel_ranges(ExecutorRef executor, int threads, const Ranges& ranges, const F& f) {
  run_ranges(executor, threads, ranges, RangeFunction::of(f));
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
