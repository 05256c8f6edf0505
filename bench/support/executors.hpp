#pragma once

#include <gatefold/gatefold.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(GATEFOLD_BENCH_TBB)
#include <oneapi/tbb.h>
#endif

/// Executors (OpenMP, TBB) whose speed is compared with that of gatefold's own threads.
namespace bench {

#if defined(_OPENMP)
struct OpenMp {
  void run(int count, gatefold::cpu::WorkerFunction f) {
#pragma omp parallel num_threads(count)
    f(omp_get_thread_num());
  }
};
#endif

#if defined(GATEFOLD_BENCH_TBB)
struct Tbb {
  oneapi::tbb::task_arena arena;
  void run(int count, gatefold::cpu::WorkerFunction f) {
    arena.execute([&] { oneapi::tbb::parallel_for(0, count, f, oneapi::tbb::simple_partitioner{}); });
  }
};
#endif

}  // namespace bench
