#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/thread_pool.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/error.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The threads and the scratch (temporary memory) with which one caller uses the CPU backend. A context also keeps
/// objects that inference reuses between calls. Several threads can compute at the same time if each has its own
/// context. A second thread that uses a context at the same time gets an ArgumentError.
template <class B>
class BasicContext : public Scratch<B>, public ObjectPool {
 public:
  using Backend = B;
  /// Makes a context with a thread pool of its own (cpu/thread_pool.hpp).
  /// @param threads  number of threads of the context; 0 means available_threads()
  /// @param eager    whether even short loops are shared between threads. This is slow; tests use it to find races
  /// @throws ArgumentError if `threads` is negative or more than the library's executor supports (32767)
  explicit BasicContext(int threads = 0, bool eager = false);
  /// Makes a context whose threads come from your own executor, for example a thread pool.
  /// @param executor  provides the threads, see cpu/executor.hpp; it must outlive the context
  /// @param threads   the most threads that the context uses, including the calling thread
  /// @throws ArgumentError unless threads is positive
  template <Executor E>
  requires(!std::is_const_v<E>) BasicContext(E& executor, int threads, bool eager = false)
      : threads_(threads), eager_(eager), own_(1), executor_(executor) {
    expect(threads > 0, "Cpu::Context", "threads", "at least 1", threads);
  }
  ~BasicContext();
  ExecutorRef executor() const { return executor_; }
  int threads() const { return threads_; }
  bool eager() const { return eager_; }
  /// Returns the number of threads for some work: 1 if sharing the work would take longer. An eager context always uses
  /// all threads.
  /// @param nanoseconds  a function that returns the time that the work is expected to take on one thread
  template <class F>
  int threads_for(const F& nanoseconds) const {
    return threads_ > 1 && (eager_ || executor_.pays(nanoseconds())) ? threads_ : 1;
  }
  /// Returns the number of bytes of scratch (temporary memory) that this context has allocated, in use or not.
  std::size_t capacity() const {
    std::size_t n = Scratch<B>::capacity();
    for (const auto& worker : workers_) n += worker->capacity();
    return n;
  }

  /// Makes matrix products read the packed copies of weights in `packed`, as long as the returned object exists.
  /// Weights without a packed copy are read as usual.
  /// @throws ArgumentError if `packed` was made by a file compiled for registers of a different width
  [[nodiscard]] auto use(const PackedWeights& packed) {
    struct Use {
      OneThread::Scope alone;
      BasicContext& ctx;
      const PackedWeights* before;
      ~Use() { ctx.packed_ = before; }
    };
    packed.expect_readable();
    return Use{this->here(), *this, std::exchange(packed_, &packed)};
  }
  void use(PackedWeights&&) = delete;
  /// Returns the packed copy of the weights w for products of operand type P, from the PackedWeights that use() has
  /// set. Returns null if there is none.
  template <class P>
  PackedMatrix<P> packed(const SumOf<P>* w) const {
    return packed_ ? packed_->template find<P>(w) : PackedMatrix<P>{};
  }

 private:
  template <class, class>
  friend struct Primitives;

  /// Returns a list of contexts with a single thread, one for each thread of this context. The first call makes them.
  const std::vector<std::unique_ptr<BasicContext>>& workers();

  int threads_;
  bool eager_;
  Workers own_;
  ExecutorRef executor_;
  const PackedWeights* packed_ = nullptr;
  std::vector<std::unique_ptr<BasicContext>> workers_{};
};

template <class B>
BasicContext<B>::BasicContext(int threads, bool eager)
    : threads_(threads > 0 ? threads : available_threads()), eager_(eager), own_(threads_), executor_(own_) {
  expect(threads >= 0, "Cpu::Context", "threads", "at least 0", threads);
  expect(threads <= Workers::kMost, "Cpu::Context", "threads", Joined{"at most ", Workers::kMost}, threads);
}
template <class B>
BasicContext<B>::~BasicContext() = default;

template <class B>
const std::vector<std::unique_ptr<BasicContext<B>>>& BasicContext<B>::workers() {
  while (workers_.size() < static_cast<std::size_t>(threads_)) workers_.push_back(std::make_unique<BasicContext>(1));
  for (const auto& worker : workers_) worker->packed_ = packed_;
  return workers_;
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
