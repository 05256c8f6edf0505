#pragma once

#include <atomic>
#include <exception>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// Threads a context uses when asked for none in particular: OpenMP's, or one without it.
inline int available_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// f(task, worker) for every task < tasks, on at most `threads` threads; worker < threads numbers the thread.
///
/// Tasks are handed out one by one in increasing order. The first exception a task throws stops the handing out and is
/// rethrown on the calling thread.
/// @order  which thread runs a task varies: f must not let `worker` reach a result
template <class F>
void parallel_for(int threads, Index tasks, const F& f) {
#if defined(_OPENMP)
  if (threads > 1 && tasks > 1) {
    std::atomic<Index> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
#pragma omp parallel num_threads(static_cast <int>(tasks < threads ? tasks : threads))
    {
      const int worker = omp_get_thread_num();
      try {
        for (Index task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(task, worker);
      } catch (...) {
        next = tasks;
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return;
  }
#endif
  (void)threads;
  for (Index task = 0; task < tasks; ++task) f(task, 0);
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
