#pragma once

#include <atomic>
#include <exception>

#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// f(task, worker) for every task < tasks, on at most `threads` threads of the executor; worker < threads numbers the
/// thread.
///
/// Tasks are handed out one by one in increasing order. The first exception a task throws stops the handing out and is
/// rethrown on the calling thread, which also does what the executor's threads leave.
/// @order  which thread runs a task varies: f must not let `worker` reach a result
template <class F>
void parallel_for(ExecutorRef executor, int threads, Index tasks, const F& f) {
  if (threads <= 1 || tasks <= 1) {
    for (Index task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  const int count = static_cast<int>(tasks < threads ? tasks : threads);
  std::atomic<Index> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  const auto work = [&](int worker) noexcept {
    GATEFOLD_ASSERT(0 <= worker && worker < count,
                    "parallel_for: a worker's number below the count that was asked for");
    try {
      for (Index task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(task, worker);
    } catch (...) {
      next = tasks;
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  executor.run(count, work);
  work(0);
  if (error) std::rethrow_exception(error);
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
