#pragma once

#include <memory>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"

/// Who brings the threads of the CPU backend: a context's own (workers.hpp), or whatever a program has.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// What an executor is given to run: f(worker), which must outlive it. Two pointers, copied freely. f throws nothing.
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

/// Runs a function on several threads.
///
///     run(count, f)   calls f(worker) for numbers 0 <= worker < count, each number once at most, on any threads and at
///                     the same time where it can, and returns when these calls have returned
///
/// It need not call f for every number, or at all: whoever asked does what is left on its own thread. That is how an
/// executor whose threads are busy, or that is used within a task of its own, needs neither wait nor fail.
template <class E>
concept Executor = requires(E& executor, int count, WorkerFunction f) {
  executor.run(count, f);
};

/// A reference to an executor of any type, itself one.
class ExecutorRef {
 public:
  template <Executor E>
  requires(!std::is_same_v<E, ExecutorRef>) ExecutorRef(E& executor)
      : executor_(std::addressof(executor)),
        run_([](void* p, int count, WorkerFunction f) { static_cast<E*>(p)->run(count, f); }) {}
  void run(int count, WorkerFunction f) const { run_(executor_, count, f); }

 private:
  void* executor_;
  void (*run_)(void*, int, WorkerFunction);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
