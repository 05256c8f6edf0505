#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/lender.hpp"
#include "gatefold/backend/cpu/loops.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/product_pair.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/group_table.hpp"
#include "gatefold/backend/scratch.hpp"

namespace gatefold {

/// The CPU backend: packed register tiles on Eigen's vector types, threads through OpenMP when found.
///
/// @order  every result is bitwise the same for any number of threads, and an element of a product depends on its own row
///         and the weights alone (cpu/product.hpp says in which order sums are taken)
struct Cpu {
  static constexpr bool is_host = true;

  /// Threads and memory of one caller: scratch, and what inference keeps between calls. Two threads may run with a context
  /// each.
  class Context : public Scratch<Cpu>, public Lender {
   public:
    using Backend = Cpu;
    /// @param threads  0: all that OpenMP offers, which is 1 without OpenMP
    /// @param eager    share out loops among the threads however short they are: slow, for tests that look for races
    /// @throws ArgumentError if negative
    explicit Context(int threads = 0, bool eager = false)
        : threads_(threads > 0 ? threads : cpu::available_threads()), eager_(eager) {
      expect(threads >= 0, "Cpu::Context", "threads", "at least 0", threads);
    }
    int threads() const { return threads_; }
    bool eager() const { return eager_; }

    /// While the returned object lives, products with weights that `packed` holds read them there.
    [[nodiscard]] auto use(const cpu::PackedWeights& packed) {
      struct Scope {
        Context& ctx;
        const cpu::PackedWeights* before;
        ~Scope() { ctx.packed_ = before; }
      };
      return Scope{*this, std::exchange(packed_, &packed)};
    }
    void use(cpu::PackedWeights&&) = delete;
    /// The packed form of weights in use, or null.
    template <class T>
    cpu::PackedMatrix<T> packed(const T* w) const {
      return packed_ ? packed_->find(w) : cpu::PackedMatrix<T>{};
    }

   private:
    int threads_;
    bool eager_;
    const cpu::PackedWeights* packed_ = nullptr;
  };

  using PackedWeights = cpu::PackedWeights;
  /// Add w [E, depth, columns] to the packed weights. @param round  floats to bfloat16
  template <class T>
  static void pack(Context& ctx, View<const T, 3, Cpu> w, bool round, PackedWeights& packed) {
    packed.add(ctx.threads(), w.data(), w.extent(0), w.extent(1), w.extent(2), round);
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
  static void for_each(Context& ctx, Index n, const F& f) {
    cpu::for_each(ctx.threads(), n, f, ctx.eager());
  }
  template <class F>
  static void for_rows(Context& ctx, Index n, const F& f) {
    cpu::for_rows(ctx.threads(), n, f, ctx.eager());
  }
  template <class T, class F>
  static void reduce(Context& ctx, Index n, const F& f, T* out) {
    cpu::reduce<T>(ctx, n, f, out);
  }
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
                   View<T, 2, Cpu> c, const E& epilogue) {
    const cpu::Batch<T> batch{.all = {.a = {a.data(), a.extent(1), !ta},
                                      .b = {b.data(), b.extent(1), tb},
                                      .c = c.data(),
                                      .c_stride = c.extent(1),
                                      .rows = c.extent(0),
                                      .columns = c.extent(1),
                                      .depth = a.extent(ta ? 0 : 1),
                                      .first = 0}};
    cpu::Product<T>::run(ctx, batch, accumulate, cpu::Finish<T>::with(epilogue));
  }

  template <class T, class E, class F>
  static void gemm_rows(Context& ctx, View<const T, 2, Cpu> a, View<const T, 2, Cpu> b, bool tb, View<T, 2, Cpu> c,
                        const E& epilogue, const F& f) {
    gemm_then_rows(ctx, a, b, tb, c, epilogue, f);
  }

  template <class T, class E>
  static void grouped_gemm(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 3, Cpu> w,
                           bool transpose, View<T, 2, Cpu> c, const E& epilogue) {
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
                              .experts = g.experts()};
    cpu::Product<T>::run(ctx, batch, false, cpu::Finish<T>::with(epilogue));
  }

  template <class T, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a,
                           const std::array<View<const T, 3, Cpu>, M>& up, const E& middle, View<const T, 3, Cpu> down,
                           bool transpose, View<T, 2, Cpu> c, const L& last) {
    static_assert(M == 1 || M == 2, "gatefold: grouped_pair takes one or two first matrices");
    cpu::PairBatch<T> batch{.a = {a.data(), a.extent(1), true, g.rows.data()},
                            .ups = M,
                            .down = {down.data(), down.extent(2), transpose},
                            .down_step = down.extent(1) * down.extent(2),
                            .c = c.data(),
                            .depth = a.extent(1),
                            .hidden = down.extent(transpose ? 2 : 1),
                            .columns = c.extent(1),
                            .offsets = g.offsets.data(),
                            .experts = g.experts()};
    bool packed = !transpose;
    for (std::size_t m = 0; m < M; ++m) {
      batch.up[m] = {up[m].data(), up[m].extent(2), transpose};
      batch.up_step[m] = up[m].extent(1) * up[m].extent(2);
      batch.packed_up[m] = ctx.packed(up[m].data());
      packed = packed && batch.packed_up[m];
    }
    if (packed) batch.packed_down = ctx.packed(down.data());
    cpu::ProductPair<T>::run(ctx, batch, cpu::Middle<T>::template with<M>(middle), cpu::Finish<T>::with(last));
  }

  template <class T>
  static void grouped_outer(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 2, Cpu> dc,
                            View<T, 3, Cpu> dw) {
    const cpu::Batch<T> batch{.all = {.a = {a.data(), a.extent(1), false, g.rows.data()},
                                      .b = {dc.data(), dc.extent(1), false},
                                      .c = dw.data(),
                                      .c_stride = dw.extent(2),
                                      .rows = dw.extent(1),
                                      .columns = dw.extent(2),
                                      .depth = 0,
                                      .first = 0},
                              .slots = cpu::Batch<T>::Slots::are_depth,
                              .offsets = g.offsets.data(),
                              .experts = g.experts()};
    cpu::Product<T>::run(ctx, batch, true, cpu::Finish<T>::with(fn::Store{}));
  }

  template <class T>
  static void grouped_sum(Context& ctx, Groups<Cpu> g, View<const T, 2, Cpu> dc, View<T, 2, Cpu> db) {
    cpu::grouped_sum(ctx.threads(), g.experts(), g.offsets.data(), dc.data(), db.extent(1), db.data());
  }
};

static_assert(Backend<Cpu>);

}  // namespace gatefold
