#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/context.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/few_rows.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/loops.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/outer.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/product_pair.hpp"
#include "gatefold/backend/cpu/quantised_format.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/panels.hpp"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The functions that every backend must have (the primitives, see backend.hpp), for a backend B that computes on the
/// CPU.
/// @tparam Operands  AsTheyAre or RoundedFloats (backend.hpp). Operands::Of<T> is the operand type of grouped products
///                   (one matrix product for each expert): T, or the type to which T is rounded
template <class B, class Operands>
struct Primitives {
  static constexpr bool is_host = true;
  using Context = BasicContext<B>;
  /// The type to which grouped products (one matrix product for each expert) convert operands of type T before they
  /// multiply.
  template <class T>
  using Of = typename Operands::template Of<T>;

  using PackedWeights = cpu::PackedWeights;
  /// Returns the packed copy of the weights at an address, or null.
  template <class T>
  static auto packed_copy(const PackedWeights& packed, const T* weights) {
    return packed.template find<Of<T>>(weights);
  }
  /// Returns the form of the packed copy of the weights w: its quantised form, or Weights::bfloat16 if it stores single
  /// values as bfloat16. Otherwise returns Weights::unchanged, also if it stores pairs of bfloat16 (words.hpp).
  template <class T>
  static Weights packed_form(const PackedWeights& packed, View<const T, 3, B> w) {
    const auto copy = packed_copy(packed, w.data());
    if (copy.quantised) return copy.quantised.format->form;
    return copy.half ? Weights::bfloat16 : Weights::unchanged;
  }
  /// Writes the numbers and scales of the quantised copy of `weights`, in the order of files (quantised_bytes.hpp).
  static void write_quantised(Context&, const PackedWeights& packed, const float* weights, const QuantisedBytes& of,
                              std::byte* numbers, Bfloat16* scales) {
    packed.panels(weights, of.experts, of.depth, of.columns).to_numbers(numbers, scales);
  }
  /// Packs numbers and scales, which are in the order of files (quantised_bytes.hpp), into memory that reserve_packed
  /// or reserve_transposed has allocated.
  /// @pre the numbers and scales are valid: of.wrong_number(numbers) and of.wrong_scale(scales) return −1
  static void read_quantised(Context&, PackedWeights& packed, const float* address, const QuantisedBytes& of,
                             const std::byte* numbers, const Bfloat16* scales) {
    packed.panels(address, of.experts, of.depth, of.columns).from_numbers(numbers, scales, packed.reserved(address));
  }
  /// Packs the experts' weights w [E, depth, columns] and stores the packed copy in `packed`, in place of an earlier
  /// copy.
  /// @throws ArgumentError if double weights should be quantised
  template <class T>
  static void pack(Context& ctx, View<const T, 3, B> w, Weights form, PackedWeights& packed) {
    packed.template add<Of<T>>(ctx, w.data(), w.extent(0), w.extent(1), w.extent(2), form);
  }

  /// Returns whether weights of type T can exist only as a packed copy of this form, without elements of their own.
  template <class T>
  static bool packs_only(Weights) {
    return true;
  }
  /// Allocates memory for the packed copy of weights [E, depth, columns] that have no elements of their own.
  /// @return the address by which products find the copy, for Tensor::resize_without_memory
  template <class T>
  static T* reserve_packed(Index experts, Index depth, Index columns, Weights form, PackedWeights& packed) {
    return packed.template reserve<Of<T>>(experts, depth, columns, form);
  }
  /// Packs the weights w [count, depth, columns] of experts first, …, first + count − 1 into memory that reserve_packed
  /// has allocated.
  template <class T>
  static void pack_experts(Context& ctx, const T* address, Index first, View<const T, 3, B> w, PackedWeights& packed) {
    packed.template pack<Of<T>>(ctx, address, first, w.extent(0), w.data(), w.extent(1), w.extent(2));
  }

  /// Returns the bytes of the packed copy of weights [E, depth, columns] at an address. `data` is null if there is no
  /// such copy.
  static Panels panels(const PackedWeights& packed, const float* w, Index experts, Index depth, Index columns) {
    return packed.panels(w, experts, depth, columns);
  }
  /// Adds the packed copy of weights that have no elements of their own. Unlike reserve_packed, this function allocates
  /// no memory for the copy: the bytes stay in the memory of another object, for example a mapped file.
  /// @param memory  the bytes. The entry in `packed` keeps a reference, so they stay valid
  /// @return the address by which products find the copy, or null if this backend reads another order of bytes
  static float* share_packed(const Panels& panels, const std::shared_ptr<std::byte>& memory, PackedWeights& packed) {
    return packed.template share<Of<float>>(panels, memory);
  }
  /// Adds the packed transpose of a matrix w, like share_packed.
  /// @param w  the address of w, or null if w has no elements of its own
  static float* share_transposed(const Panels& panels, const std::shared_ptr<std::byte>& memory, PackedWeights& packed,
                                 float* w = nullptr) {
    return packed.template share<float>(panels, memory, w);
  }
  /// Stores a reference to `memory` in `packed`, so that `memory` stays valid as long as `packed` exists. Call it for
  /// weights whose elements are in memory that another object owns, for example a mapped file.
  static void keep(PackedWeights& packed, const std::shared_ptr<std::byte>& memory) { packed.keep(memory); }

  /// Packs the transpose of w [columns, depth], for example the weights of an output layer [V, D], for gemm_transposed.
  /// Products with the packed transpose do not round their operands to bfloat16. If the form is Weights::unchanged, or
  /// Weights::bfloat16 for doubles, the function packs nothing, because gemm is as fast with the unpacked w as with a
  /// packed transpose.
  /// @throws ArgumentError if double weights should be quantised
  template <class T>
  static void pack_transposed(Context& ctx, View<const T, 2, B> w, Weights form, PackedWeights& packed) {
    if (packs_transposed<T>(form)) packed.template add_transposed<T>(ctx, w.data(), w.extent(1), w.extent(0), form);
  }
  /// Returns whether pack_transposed packs weights of this form.
  template <class T>
  static bool packs_transposed(Weights form) {
    return is_quantised(form) || (form == Weights::bfloat16 && std::is_same_v<T, float>);
  }
  /// Allocates memory for the packed transpose of w [columns, depth], which pack_columns writes.
  /// @param w  the address of w, or null if w has no elements of its own
  /// @return the address by which products find the packed copy
  template <class T>
  static T* reserve_transposed(Index columns, Index depth, Weights form, PackedWeights& packed, T* w = nullptr) {
    return packed.template reserve<T>(1, depth, columns, form, w);
  }
  /// Packs rows of w [columns, depth], from row number `first` on, into memory that reserve_transposed has allocated.
  /// @param first  a multiple of columns_together
  /// @param rows   the rows of w. The number of rows is a multiple of columns_together, unless they are the last rows
  template <class T>
  static void pack_columns(Context& ctx, const T* address, Index first, View<const T, 2, B> rows, Index columns,
                           PackedWeights& packed) {
    packed.template pack_columns<T>(ctx, address, first, rows.extent(0), rows.data(), rows.extent(1), columns);
  }
  template <class T>
  static constexpr Index columns_together = Tile<T>::columns;
  /// Returns the packed transpose of the weights at an address, or null.
  template <class T>
  static PackedMatrix<T> packed_transposed(const PackedWeights& packed, const T* w) {
    return packed.template find<T>(w);
  }

  static void* allocate(std::size_t bytes) { return cpu::allocate(bytes); }
  static void release(void* p) { cpu::release(p); }
  static void poison(void* p, std::size_t bytes) { std::memset(p, 0xff, bytes); }
  static void write_zeros(Context&, void* p, std::size_t bytes) {
    if (bytes > 0) std::memset(p, 0, bytes);
  }
  template <class T>
  static void to_host(Context&, Index n, const T* from, T* to) {
    expect_elements("Cpu.to_host", from);
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
  /// Runs n tasks by calls of f(context, first, count). If tasks can be divided about evenly between threads, worker i
  /// runs the tasks i, i + threads, i + 2 threads, … with a context of its own. In every call with the same sizes, this
  /// context therefore needs the same memory. If the tasks cannot be divided evenly, one call of f gets all tasks, and
  /// the primitives that f calls use the threads.
  /// @param work  number of multiply-adds of all tasks. If they take so little time that sharing them does not pay, the
  ///              calling thread runs all tasks, with the same contexts. 0 means that the number is large but unknown
  template <class F>
  static void for_tasks(Context& ctx, Index n, const F& f, Index work = 0) {
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
    const int used = work == 0 ? ctx.threads() : ctx.threads_for([&] { return expected_ns<float>(work, 0); });
    cpu::parallel_for(ctx.executor(), used, threads, [&](Index worker, int) {
      for (Index task = worker; task < n; task += threads)
        f(*workers[static_cast<std::size_t>(worker)], task, Index(1));
    });
  }
  template <class T, class F>
  static void reduce(Context& ctx, Index n, const F& f, T* out);
  static void group_by(Context& ctx, View<const Index, 1, B> keys, View<Index, 1, B> offsets, View<Index, 1, B> order) {
    if (offsets.empty()) return;
    cpu::group_by(ctx, keys.size(), keys.data(), offsets.extent(0) - 1, offsets.data(), order.data());
  }

  static void group_table(Context& ctx, View<const Index, 2, B> keys, View<Index, 1, B> offsets,
                          View<Index, 1, B> order, View<Index, 1, B> rows, View<Index, 1, B> row_offsets,
                          View<Index, 1, B> row_slots) {
    group_by_and_back(ctx, keys, offsets, order, rows, row_offsets, row_slots);
  }

  template <class T, class E>
  static void gemm(Context& ctx, View<const T, 2, B> a, bool ta, View<const T, 2, B> b, bool tb, bool accumulate,
                   View<T, 2, B> c, const E& epilogue);

  /// Computes c = a wᵀ for rows [first, first + c.extent(1)) of w, if the context uses a packed copy of w's transpose
  /// (pack_transposed). `first` is a multiple of columns_together.
  /// @return whether there is such a copy. Otherwise c is unchanged, and gemm can compute the product
  template <class T, class E>
  static bool gemm_transposed(Context& ctx, View<const T, 2, B> a, View<const T, 2, B> w, Index first, View<T, 2, B> c,
                              const E& epilogue) {
    const PackedMatrix<T> packed = ctx.template packed<T>(w.data());
    if (!packed) return false;
    Batch<T> batch = one_product(a, false, w, true, c, 0);
    batch.all.b = {nullptr, w.extent(0), false};  // the product reads only the packed copy
    batch.all.packed = packed;
    batch.all.packed_columns = w.extent(0);
    batch.all.packed_column = first;
    Product<T>::run(ctx, batch, Epilogue<T>::with(epilogue));
    return true;
  }

  /// Computes the matrix product c of a and b (or bᵀ), and calls f for each finished row of c. The rows are divided
  /// into blocks. One thread computes the product of a block, and then calls f for its rows while they are in the
  /// thread's cache. Fewer than tuning.unshared_rows rows are one block; all threads can share its product.
  template <class T, class E, class F>
  static void gemm_rows(Context& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb, View<T, 2, B> c,
                        const E& epilogue, const F& f);

  template <class T, class E>
  static void grouped_gemm(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w, bool transpose,
                           View<T, 2, B> c, const E& epilogue);

  /// Computes grouped_gemm without packed copies of w, for matrices that are used once, like the keys and values of
  /// attention. If no group has more than a few rows, the function reads w in the order of memory (few_rows.hpp).
  template <class T, class E>
  static void grouped_gemm_in_place(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w,
                                    bool transpose, View<T, 2, B> c, const E& epilogue) {
    static_assert(std::is_same_v<Of<T>, T>);  // call it with FullPrecision<B>
    const auto batch = grouped_product({}, g, a, w, transpose, c);
    const auto store = Epilogue<T>::with(epilogue);
    if (!FewRows<T>::fits(batch)) return Product<T>::run(ctx, batch, store);
    const auto mark = ctx.mark();
    Product<T>::reserve(ctx, batch, store);
    FewRows<T>::run(ctx, batch, store);
  }

  template <class T, class F>
  static void grouped_gemm_rows(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w, bool transpose,
                                View<T, 2, B> c, const F& f) {
    grouped_gemm(ctx, g, a, w, transpose, c, functor::Store{});
    for_rows(ctx, g.slots, functor::OnSlot<F, T, B>{f, g.offsets, c});
  }

  template <class T, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<B> g, View<const T, 2, B> a,
                           const std::array<View<const T, 3, B>, M>& up, const E& middle, View<const T, 3, B> down,
                           View<T, 2, B> c, const L& last);

  template <class T>
  static void grouped_outer(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 2, B> dc, View<T, 3, B> dw,
                            bool accumulate = true, View<const Index, 1, B> dc_rows = {});

  template <class T>
  static void grouped_sum(Context& ctx, Groups<B> g, View<const T, 2, B> dc, View<T, 2, B> db, bool accumulate = true,
                          View<const Index, 1, B> dc_rows = {}, In<T, 1, B> weight = {});

 private:
  /// Describes the product of two matrices as a Batch, the input of the product engine (batch.hpp).
  /// @param first  the row number that is passed to the epilogue for row 0 of c
  template <class T>
  static Batch<T> one_product(View<const T, 2, B> a, bool ta, View<const T, 2, B> b, bool tb, View<T, 2, B> c,
                              Index first) {
    return {.all = {.a = {a.data(), a.extent(1), !ta},
                    .b = {b.data(), b.extent(1), tb},
                    .c = c.data(),
                    .c_stride = c.extent(1),
                    .rows = c.extent(0),
                    .columns = c.extent(1),
                    .depth = a.extent(ta ? 0 : 1),
                    .first = first}};
  }

  /// Computes c = a wᵀ for quantised weights w [E, depth, columns], which is the adjoint of a product with w. Computes
  /// in float, even if the backend rounds operands to bfloat16. Decodes the weights of one expert after the other.
  template <class E>
  static void times_transposed(Context& ctx, Groups<B> g, View<const float, 2, B> a, QuantisedMatrix w, Index depth,
                               View<float, 2, B> c, const E& epilogue) {
    const Index columns = a.extent(1);
    const auto mark = ctx.mark();
    float* const decoded = ctx.template scratch<float>(depth, columns).data();
    for (Index e = 0; e < g.experts(); ++e) {
      const Index first = g.offsets(e), count = g.offsets(e + 1) - first;
      if (count == 0) continue;
      decode(ctx, w + e * QuantisedMatrix::size(depth, columns), depth, columns, decoded);
      Batch<float> batch = one_product(a, false, View<const float, 2, B>(decoded, depth, columns), true, c, first);
      batch.all.a.rows = g.rows.data();
      Batch<float>::skip_rows(batch.all.a, first);
      batch.all.c += first * batch.all.c_stride;
      batch.all.rows = count;
      batch.first_expert = e;
      Product<float>::run(ctx, batch, Epilogue<float>::with(epilogue));
    }
  }

  /// Describes a grouped product as a Batch.
  template <class T>
  static Batch<Of<T>> grouped_product(const PackedMatrix<Of<T>>& packed, Groups<B> g, View<const T, 2, B> a,
                                      View<const T, 3, B> w, bool transpose, View<T, 2, B> c) {
    return {.all = {.a = {a.data(), a.extent(1), true, g.rows.data()},
                    .b = {w.data(), w.extent(2), transpose},
                    .c = c.data(),
                    .c_stride = c.extent(1),
                    .rows = 0,
                    .columns = c.extent(1),
                    .depth = a.extent(1),
                    .first = 0,
                    .packed = transpose ? PackedMatrix<Of<T>>{} : packed},
            .slots = Batch<Of<T>>::Slots::are_rows,
            .offsets = g.offsets.data(),
            .experts = g.experts(),
            .most_slots = g.slots};
  }
};

// The functions below are defined outside the class, because functions defined inside a class are inline. An optimising
// compiler compiles inline functions again in each source file, even if kernels.hpp declares them as extern templates.
template <class B, class Operands>
template <class F>
void Primitives<B, Operands>::for_each(Context& ctx, Index n, const F& f) {
  const OneThread::Scope alone(ctx);
  cpu::for_each(ctx, n, f);
}
template <class B, class Operands>
template <class F>
void Primitives<B, Operands>::for_rows(Context& ctx, Index n, const F& f) {
  const OneThread::Scope alone(ctx);
  cpu::for_rows(ctx, n, f);
}
template <class B, class Operands>
template <class T, class F>
void Primitives<B, Operands>::reduce(Context& ctx, Index n, const F& f, T* out) {
  cpu::reduce<T>(ctx, n, f, out);
}
template <class B, class Operands>
template <class T, class E>
void Primitives<B, Operands>::gemm(Context& ctx, View<const T, 2, B> a, bool ta, View<const T, 2, B> b, bool tb,
                                   bool accumulate, View<T, 2, B> c, const E& epilogue) {
  expect_elements("Cpu.gemm", b.data());
  auto batch = one_product(a, ta, b, tb, c, 0);
  batch.accumulate = accumulate;
  if constexpr (std::is_same_v<E, functor::Store>)
    if (ta && !tb) return outer(ctx, batch, c.as(1, c.extent(0), c.extent(1)));
  Product<T>::run(ctx, batch, Epilogue<T>::with(epilogue));
}
template <class B, class Operands>
template <class T, class E>
void Primitives<B, Operands>::grouped_gemm(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w,
                                           bool transpose, View<T, 2, B> c, const E& epilogue) {
  const PackedMatrix<Of<T>> packed = ctx.template packed<Of<T>>(w.data());
  if constexpr (std::is_same_v<T, float>)
    if (transpose && packed.quantised) return times_transposed(ctx, g, a, packed.quantised, w.extent(1), c, epilogue);
  if (transpose || !packed) expect_elements("Cpu.grouped_gemm", w.data());
  Product<Of<T>>::run(ctx, grouped_product(packed, g, a, w, transpose, c), Epilogue<T>::with(epilogue));
}
template <class B, class Operands>
template <class T, std::size_t M, class E, class L>
void Primitives<B, Operands>::grouped_pair(Context& ctx, Groups<B> g, View<const T, 2, B> a,
                                           const std::array<View<const T, 3, B>, M>& up, const E& middle,
                                           View<const T, 3, B> down, View<T, 2, B> c, const L& last) {
  static_assert(M == 1 || M == 2, "gatefold: grouped_pair takes one or two first matrices");
  PairBatch<Of<T>> batch{.a = {a.data(), a.extent(1), true, g.rows.data()},
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
    batch.packed_up[m] = ctx.template packed<Of<T>>(up[m].data());
    packed = packed && batch.packed_up[m];
  }
  expect(bool(batch.packed_up[0].quantised) == bool(batch.packed_up[M - 1].quantised), "freeze", "weights",
         "the first two matrices of an expert quantised, or none of them", "one of them");
  if (packed) batch.packed_down = ctx.template packed<Of<T>>(down.data());
  if (!batch.packed_down) {  // the product reads none of the packed copies
    expect_elements("Cpu.grouped_pair", down.data());
    for (const T* const w : batch.up)
      if (w) expect_elements("Cpu.grouped_pair", w);
  }
  ProductPair<Of<T>>::run(ctx, batch, HiddenEpilogue<T>::template with<M>(middle), Epilogue<T>::with(last));
}
template <class B, class Operands>
template <class T>
void Primitives<B, Operands>::grouped_outer(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 2, B> dc,
                                            View<T, 3, B> dw, bool accumulate, View<const Index, 1, B> dc_rows) {
  const Batch<Of<T>> batch{.all = {.a = {a.data(), a.extent(1), false, g.rows.data()},
                                   .b = {dc.data(), dc.extent(1), false, dc_rows.data()},
                                   .c = dw.data(),
                                   .c_stride = dw.extent(2),
                                   .rows = dw.extent(1),
                                   .columns = dw.extent(2),
                                   .depth = g.slots / std::max<Index>(g.experts(), 1),
                                   .first = 0},
                           .slots = Batch<Of<T>>::Slots::are_depth,
                           .offsets = g.offsets.data(),
                           .experts = g.experts(),
                           .most_slots = g.slots,
                           .accumulate = accumulate,
                           .stays_cached = dw.size() < tuning.streamed_size};
  outer(ctx, batch, dw);
}
template <class B, class Operands>
template <class T>
void Primitives<B, Operands>::grouped_sum(Context& ctx, Groups<B> g, View<const T, 2, B> dc, View<T, 2, B> db,
                                          bool accumulate, View<const Index, 1, B> dc_rows, In<T, 1, B> weight) {
  cpu::grouped_sum(ctx, g.experts(), g.offsets.data(), dc.data(), dc_rows.data(), weight.data(), db.extent(1),
                   accumulate, db.data());
}
template <class B, class Operands>
template <class T, class E, class F>
void Primitives<B, Operands>::gemm_rows(Context& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb,
                                        View<T, 2, B> c, const E& epilogue, const F& f) {
  constexpr Index many = tuning.handed_rows;
  const Index few = ctx.eager() ? 2 : tuning.unshared_rows;
  const Index rows = a.extent(0), columns = c.extent(1), threads = ctx.threads();
  if (rows == 0) return;
  const Index tasks = rows < few ? 1 : divide_up(rows, many * threads) * threads;
  const auto run = [&](Context& own, Index task, Index together) {
    const auto mark = own.mark();
    const Index first = task * rows / tasks, count = (task + together) * rows / tasks - first;
    const View<T, 2, B> part = c.data() ? c.rows(first, count) : own.template scratch<T>(count, columns);
    Product<T>::run(own, one_product(a.rows(first, count), false, b, tb, part, first), Epilogue<T>::with(epilogue));
    for (Index r = 0; r < count; ++r) f(RowLanes{}, first + r, part.data() + r * columns);
  };
  for_tasks(ctx, tasks, run, rows * columns * a.extent(1));
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
