#pragma once

#include <memory>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"

/// An executor provides the threads of the CPU backend. It is the library's own thread pool (thread_pool.hpp), or the
/// thread pool of your program.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A reference to the function f(worker) that an executor calls on its threads. f must outlive this object and must not
/// throw. The object is two pointers and can be copied freely.
class WorkerFunction {
 public:
  template <class F>
  requires(!std::is_same_v<F, const WorkerFunction> && !std::is_same_v<F, WorkerFunction>) WorkerFunction(F& f)
      : f_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* p, int worker) { (*static_cast<F*>(p))(worker); }) {}
  void operator()(int worker) const { call_(f_, worker); }

 private:
  void* f_;
  void (*call_)(void*, int);
};

/// An executor, for example a thread pool, runs a function on several threads.
///
///     run(count, f)   calls f(worker) for numbers 0 <= worker < count, each number at most once, on any threads, at
///                     the same time if possible, and returns when these calls have returned
///
/// An executor can also have a function that decides whether its threads should help at all:
///
///     pays(ns)        returns whether several threads are faster than the calling thread for work that takes the
///                     calling thread `ns` nanoseconds. Without this function, work of 20 µs or more is shared
///
/// `run` need not call f for every number, or at all, because the caller does the remaining work on its own thread. An
/// executor whose threads are busy, or that is used inside one of its own tasks, therefore need not wait or fail.
template <class E>
concept Executor = requires(E& executor, int count, WorkerFunction f) {
  executor.run(count, f);
};

/// A reference to an executor (a thread pool) of any type. The reference is an executor too.
class ExecutorRef {
 public:
  template <Executor E>
  requires(!std::is_same_v<E, ExecutorRef>) ExecutorRef(E& executor)
      : executor_(std::addressof(executor)),
        run_([](void* p, int count, WorkerFunction f) { static_cast<E*>(p)->run(count, f); }),
        pays_([]([[maybe_unused]] void* p, double ns) {
          if constexpr (requires(E & e) { e.pays(ns); }) {
            return bool(static_cast<E*>(p)->pays(ns));
          } else {
            return ns >= 20'000;
          }
        }) {}
  void run(int count, WorkerFunction f) const { run_(executor_, count, f); }
  bool pays(double ns) const { return pays_(executor_, ns); }

 private:
  void* executor_;
  void (*run_)(void*, int, WorkerFunction);
  bool (*pays_)(void*, double);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
