#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/loops.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/outer.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/product_pair.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/workers.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/group_table.hpp"
#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI {

/// The CPU backend: packed register tiles on Eigen's vector types, threads through an executor (cpu/executor.hpp).
///
/// A type of its own for every instruction set (cpu/instruction_set.hpp): files compiled with different -march may be
/// linked together, each with a backend of its own, and hand each other plain pointers.
///
/// @order  every result is bitwise the same for any number of threads, and an element of a product depends on its own
/// row
///         and the weights alone (cpu/product.hpp says in which order sums are taken)
struct Cpu {
  static constexpr bool is_host = true;

  /// Threads and memory of one caller: scratch, also of each thread for tasks of its own, and what inference keeps
  /// between calls. Two threads may run with a context each; a second one in this context is refused with an
  /// ArgumentError.
  class Context : public Scratch<Cpu>, public ObjectPool {
   public:
    using Backend = Cpu;
    /// @param threads  of its own (cpu/workers.hpp); 0: cpu::available_threads()
    /// @param eager    share out loops among the threads however short they are: slow, for tests that look for races
    /// @throws ArgumentError if negative
    explicit Context(int threads = 0, bool eager = false)
        : threads_(threads > 0 ? threads : cpu::available_threads()), eager_(eager), own_(threads_), executor_(own_) {
      expect(threads >= 0, "Cpu::Context", "threads", "at least 0", threads);
    }
    /// @param executor  brings the threads, see cpu/executor.hpp; it must outlive the context
    /// @param threads   how many of them this context asks for at most, its own among them
    /// @throws ArgumentError unless threads is positive
    template <cpu::Executor E>
    requires(!std::is_const_v<E>) Context(E& executor, int threads, bool eager = false)
        : threads_(threads), eager_(eager), own_(1), executor_(executor) {
      expect(threads > 0, "Cpu::Context", "threads", "at least 1", threads);
    }
    cpu::ExecutorRef executor() const { return executor_; }
    int threads() const { return threads_; }
    bool eager() const { return eager_; }
    /// Bytes of scratch held, in use or not.
    std::size_t capacity() const {
      std::size_t n = Scratch::capacity();
      for (const auto& worker : workers_) n += worker->capacity();
      return n;
    }

    /// While the returned object lives, products with weights that `packed` holds read them there.
    /// @throws ArgumentError if they were packed by a file compiled for registers of another width
    [[nodiscard]] auto use(const cpu::PackedWeights& packed) {
      struct Scope {
        Context& ctx;
        const cpu::PackedWeights* before;
        ~Scope() { ctx.packed_ = before; }
      };
      packed.expect_readable();
      return Scope{*this, std::exchange(packed_, &packed)};
    }
    void use(cpu::PackedWeights&&) = delete;
    /// The packed form of weights in use, or null.
    template <class T>
    cpu::PackedMatrix<T> packed(const T* w) const {
      return packed_ ? packed_->find(w) : cpu::PackedMatrix<T>{};
    }

   private:
    friend Cpu;
    /// A context of one thread for each thread of this one, made once.
    const std::vector<std::unique_ptr<Context>>& workers() {
      while (workers_.size() < static_cast<std::size_t>(threads_)) workers_.push_back(std::make_unique<Context>(1));
      for (const auto& worker : workers_) worker->packed_ = packed_;
      return workers_;
    }

    int threads_;
    bool eager_;
    cpu::Workers own_;
    cpu::ExecutorRef executor_;
    const cpu::PackedWeights* packed_ = nullptr;
    std::vector<std::unique_ptr<Context>> workers_;
  };

  using PackedWeights = cpu::PackedWeights;
  /// Add w [E, depth, columns] to the packed weights. @param round  floats to bfloat16
  template <class T>
  static void pack(Context& ctx, View<const T, 3, Cpu> w, bool round, PackedWeights& packed) {
    packed.add(ctx, w.data(), w.extent(0), w.extent(1), w.extent(2), round);
  }

  static void* allocate(std::size_t bytes) { return cpu::allocate(bytes); }
  static void release(void* p) { cpu::release(p); }
  static void poison(void* p, std::size_t bytes) { std::memset(p, 0xff, bytes); }
  template <class T>
  static void to_host(Context&, Index n, const T* from, T* to) {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }
  template <class T>
  static void from_host(Context&, Index n, const T* from, T* to) {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }

  template <class F>
  static void for_each(Context& ctx, Index n, const F& f);
  template <class F>
  static void for_rows(Context& ctx, Index n, const F& f);
  /// Tasks that can be shared out evenly run one by one, one to a thread, in turn, so that what a context of a thread
  /// takes of memory is the same in every call of the same sizes; others are one range, which shares out its own work.
  template <class F>
  static void for_tasks(Context& ctx, Index n, const F& f) {
    const OneThread::Scope alone(ctx);
    const Index threads = ctx.threads();
    const bool evenly = ctx.eager() || n % threads == 0 || n >= 4 * threads;
    if (n == 0) return;
    if (threads > 1 && (n == 1 || !evenly)) return f(ctx, Index(0), n);
    if (threads == 1) {
      for (Index task = 0; task < n; ++task) f(ctx, task, Index(1));
      return;
    }
    const auto& workers = ctx.workers();
    cpu::parallel_for(ctx.executor(), ctx.threads(), threads, [&](Index worker, int) {
      for (Index task = worker; task < n; task += threads)
        f(*workers[static_cast<std::size_t>(worker)], task, Index(1));
    });
  }
  template <class T, class F>
  static void reduce(Context& ctx, Index n, const F& f, T* out);
  static void group_by(Context& ctx, View<const Index, 1, Cpu> keys, View<Index, 1, Cpu> offsets,
                       View<Index, 1, Cpu> order) {
    if (offsets.empty()) return;
    cpu::group_by(ctx, keys.size(), keys.data(), offsets.extent(0) - 1, offsets.data(), order.data());
  }

  static void group_table(Context& ctx, View<const Index, 2, Cpu> keys, View<Index, 1, Cpu> offsets,
                          View<Index, 1, Cpu> order, View<Index, 1, Cpu> rows, View<Index, 1, Cpu> row_offsets,
                          View<Index, 1, Cpu> row_slots) {
    group_by_and_back(ctx, keys, offsets, order, rows, row_offsets, row_slots);
  }

  template <class T, class E>
  static void gemm(Context& ctx, View<const T, 2, Cpu> a, bool ta, View<const T, 2, Cpu> b, bool tb, bool accumulate,
                   View<T, 2, Cpu> c, const E& epilogue);

  /// Blocks of rows, each by one thread: the product, then f while the rows are in its cache.
  template <class T, class E, class F>
  static void gemm_rows(Context& ctx, View<const T, 2, Cpu> a, View<const T, 2, Cpu> b, bool tb, View<T, 2, Cpu> c,
                        const E& epilogue, const F& f);

  template <class T, class E>
  static void grouped_gemm(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 3, Cpu> w,
                           bool transpose, View<T, 2, Cpu> c, const E& epilogue);

  template <class T, class F>
  static void grouped_gemm_rows(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 3, Cpu> w,
                                bool transpose, View<T, 2, Cpu> c, const F& f) {
    grouped_gemm(ctx, g, a, w, transpose, c, fn::Store{});
    for_rows(ctx, g.slots, fn::OnSlot<F, T, Cpu>{f, g.offsets, c});
  }

  template <class T, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a,
                           const std::array<View<const T, 3, Cpu>, M>& up, const E& middle, View<const T, 3, Cpu> down,
                           View<T, 2, Cpu> c, const L& last);

  template <class T>
  static void grouped_outer(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 2, Cpu> dc,
                            View<T, 3, Cpu> dw, bool accumulate = true, View<const Index, 1, Cpu> dc_rows = {});

  template <class T>
  static void grouped_sum(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> dc, View<T, 2, Cpu> db,
                          bool accumulate = true, View<const Index, 1, Cpu> dc_rows = {}, In<T, 1, Cpu> weight = {});

 private:
  /// The product of two matrices. @param first  the row that row 0 of c is for an epilogue
  template <class T>
  static cpu::Batch<T> one_product(View<const T, 2, Cpu> a, bool ta, View<const T, 2, Cpu> b, bool tb,
                                   View<T, 2, Cpu> c, Index first) {
    return {.all = {.a = {a.data(), a.extent(1), !ta},
                    .b = {b.data(), b.extent(1), tb},
                    .c = c.data(),
                    .c_stride = c.extent(1),
                    .rows = c.extent(0),
                    .columns = c.extent(1),
                    .depth = a.extent(ta ? 0 : 1),
                    .first = first}};
  }
};

// Out of the class: what is in it is inline, and compiled again by whoever optimises in spite of kernels.hpp.
template <class F>
void Cpu::for_each(Context& ctx, Index n, const F& f) {
  const OneThread::Scope alone(ctx);
  cpu::for_each(ctx, n, f);
}
template <class F>
void Cpu::for_rows(Context& ctx, Index n, const F& f) {
  const OneThread::Scope alone(ctx);
  cpu::for_rows(ctx, n, f);
}
template <class T, class F>
void Cpu::reduce(Context& ctx, Index n, const F& f, T* out) {
  cpu::reduce<T>(ctx, n, f, out);
}
template <class T, class E>
void Cpu::gemm(Context& ctx, View<const T, 2, Cpu> a, bool ta, View<const T, 2, Cpu> b, bool tb, bool accumulate,
               View<T, 2, Cpu> c, const E& epilogue) {
  auto batch = one_product(a, ta, b, tb, c, 0);
  batch.accumulate = accumulate;
  if constexpr (std::is_same_v<E, fn::Store>)
    if (ta && !tb) return cpu::outer(ctx, batch, c.as(1, c.extent(0), c.extent(1)));
  cpu::Product<T>::run(ctx, batch, cpu::Epilogue<T>::with(epilogue));
}
template <class T, class E>
void Cpu::grouped_gemm(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 3, Cpu> w, bool transpose,
                       View<T, 2, Cpu> c, const E& epilogue) {
  const cpu::Batch<T> batch{.all = {.a = {a.data(), a.extent(1), true, g.rows.data()},
                                    .b = {w.data(), w.extent(2), transpose},
                                    .c = c.data(),
                                    .c_stride = c.extent(1),
                                    .rows = 0,
                                    .columns = c.extent(1),
                                    .depth = a.extent(1),
                                    .first = 0,
                                    .packed = transpose ? cpu::PackedMatrix<T>{} : ctx.packed(w.data())},
                            .slots = cpu::Batch<T>::Slots::are_rows,
                            .offsets = g.offsets.data(),
                            .experts = g.experts(),
                            .most_slots = g.slots};
  cpu::Product<T>::run(ctx, batch, cpu::Epilogue<T>::with(epilogue));
}
template <class T, std::size_t M, class E, class L>
void Cpu::grouped_pair(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a,
                       const std::array<View<const T, 3, Cpu>, M>& up, const E& middle, View<const T, 3, Cpu> down,
                       View<T, 2, Cpu> c, const L& last) {
  static_assert(M == 1 || M == 2, "gatefold: grouped_pair takes one or two first matrices");
  cpu::PairBatch<T> batch{.a = {a.data(), a.extent(1), true, g.rows.data()},
                          .ups = M,
                          .down = down.data(),
                          .c = c.data(),
                          .depth = a.extent(1),
                          .hidden = down.extent(1),
                          .columns = c.extent(1),
                          .offsets = g.offsets.data(),
                          .experts = g.experts(),
                          .slots = g.slots};
  bool packed = true;
  for (std::size_t m = 0; m < M; ++m) {
    batch.up[m] = up[m].data();
    batch.packed_up[m] = ctx.packed(up[m].data());
    packed = packed && batch.packed_up[m];
  }
  if (packed) batch.packed_down = ctx.packed(down.data());
  cpu::ProductPair<T>::run(ctx, batch, cpu::HiddenEpilogue<T>::template with<M>(middle), cpu::Epilogue<T>::with(last));
}
template <class T>
void Cpu::grouped_outer(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 2, Cpu> dc,
                        View<T, 3, Cpu> dw, bool accumulate, View<const Index, 1, Cpu> dc_rows) {
  const cpu::Batch<T> batch{.all = {.a = {a.data(), a.extent(1), false, g.rows.data()},
                                    .b = {dc.data(), dc.extent(1), false, dc_rows.data()},
                                    .c = dw.data(),
                                    .c_stride = dw.extent(2),
                                    .rows = dw.extent(1),
                                    .columns = dw.extent(2),
                                    .depth = g.slots / std::max<Index>(g.experts(), 1),
                                    .first = 0},
                            .slots = cpu::Batch<T>::Slots::are_depth,
                            .offsets = g.offsets.data(),
                            .experts = g.experts(),
                            .most_slots = g.slots,
                            .accumulate = accumulate};
  cpu::outer(ctx, batch, dw);
}
template <class T>
void Cpu::grouped_sum(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> dc, View<T, 2, Cpu> db, bool accumulate,
                      View<const Index, 1, Cpu> dc_rows, In<T, 1, Cpu> weight) {
  cpu::grouped_sum(ctx, g.experts(), g.offsets.data(), dc.data(), dc_rows.data(), weight.data(), db.extent(1),
                   accumulate, db.data());
}
template <class T, class E, class F>
void Cpu::gemm_rows(Context& ctx, View<const T, 2, Cpu> a, View<const T, 2, Cpu> b, bool tb, View<T, 2, Cpu> c,
                    const E& epilogue, const F& f) {
  constexpr Index many = cpu::tuning.handed_rows;
  const Index few = ctx.eager() ? 2 : cpu::tuning.unshared_rows;
  const Index rows = a.extent(0), columns = c.extent(1), threads = ctx.threads();
  if (rows == 0) return;
  const Index tasks = rows < few ? 1 : (rows + many * threads - 1) / (many * threads) * threads;
  for_tasks(ctx, tasks, [&](Context& own, Index task, Index together) {
    const auto mark = own.mark();
    const Index first = task * rows / tasks, count = (task + together) * rows / tasks - first;
    const View<T, 2, Cpu> part = c.data() ? c.rows(first, count) : own.template scratch<T>(count, columns);
    cpu::Product<T>::run(own, one_product(a.rows(first, count), false, b, tb, part, first),
                         cpu::Epilogue<T>::with(epilogue));
    for (Index r = 0; r < count; ++r) f(cpu::RowLanes{}, first + r, part.data() + r * columns);
  });
}

static_assert(Backend<Cpu>);

}  // namespace gatefold::inline GATEFOLD_CPU_ABI

#if defined(GATEFOLD_KERNELS)
#include "gatefold/backend/cpu/kernels.hpp"
#endif
