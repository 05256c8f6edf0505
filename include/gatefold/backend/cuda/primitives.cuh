#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cuda/bf16_experts.cuh"
#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/blas_experts.cuh"
#include "gatefold/backend/cuda/context.cuh"
#include "gatefold/backend/cuda/group_by.cuh"
#include "gatefold/backend/cuda/group_table.cuh"
#include "gatefold/backend/cuda/grouped_sum.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/outer_product.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/cuda/product.cuh"
#include "gatefold/backend/cuda/product_rows.cuh"
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/cuda/retired.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::detail_::device {

/// A tag type for device memory. Views of the backends that have this tag convert to each other (tensor/view.hpp).
struct DeviceMemory;

/// The primitives (loops, sorts, matrix products and copies; see backend.hpp) of a CUDA backend B.
/// @tparam Operands  the type of the factors of grouped products: Operands::Of<T> is T or the type to which T is
///                   rounded (backend.hpp)
template <class B, class Operands>
struct Primitives {
  static constexpr bool is_host = false;
  using Memory = DeviceMemory;
  using Options = detail_::device::Options;
  using Context = BasicContext<B>;

  /// True if grouped products (the products of experts) round factors of type T before they multiply them.
  template <class T>
  static constexpr bool rounds = !std::is_same_v<typename Operands::template Of<T>, T>;

  // The smallest compute capability that the device can have, as 10 · major + minor.
  static constexpr int least_capability = rounds<float> ? 80 : 75;

  using PackedWeights = detail_::device::PackedWeights;
  /// Adds a copy of the weights w [E, depth, columns] in the given form to `packed`. It does nothing for
  /// Weights::unchanged, and for double weights with Weights::bfloat16.
  /// @throws ArgumentError if w are double weights and the form has 8 or 4 bits
  template <class T>
  static void pack(Context& ctx, View<const T, 3, B> w, Weights form, PackedWeights& packed) {
    const auto here = ctx.here();
    if (w.size() == 0) return;
    if (is_quantised(form)) expect_quantisable<T>();
    if constexpr (std::is_same_v<T, float>) {
      if (form == Weights::bfloat16) packed.add(ctx.stream(), w.data(), w.extent(0) * w.extent(1), w.extent(2));
      if (is_quantised(form)) packed.add_quantised(ctx.stream(), w.data(), w.extent(0), w.extent(1), w.extent(2), form);
    }
  }
  /// Returns whether a packed copy of this form can replace weights of type T, so that their own elements need no
  /// memory.
  template <class T>
  static bool packs_only(Weights form) {
    return std::is_same_v<T, float> && is_quantised(form);
  }
  /// Allocates the packed copy of weights [E, depth, columns] that are stored only in this copy. No memory is allocated
  /// for their unpacked elements.
  /// @return the address by which products find the copy, for Tensor::resize_without_memory
  /// @throws ArgumentError if T is double
  template <class T>
  static T* reserve_packed(Index experts, Index depth, Index columns, Weights form, PackedWeights& packed) {
    expect_quantisable<T>();
    if constexpr (std::is_same_v<T, float>) {
      return packed.reserve_quantised(experts, depth, columns, form);
    } else {
      return nullptr;
    }
  }
  /// Rounds the weights w [count, depth, columns] of experts first, …, first + count − 1 into memory that
  /// reserve_packed has allocated. w is in host or device memory. Waits until the weights are rounded.
  /// @cost  scratch memory for `count` experts
  template <class T>
  static void pack_experts(Context& ctx, const T* address, Index first, View<const T, 3, B> w, PackedWeights& packed) {
    if constexpr (std::is_same_v<T, float>) {
      const auto here = ctx.here();
      const auto mark = ctx.mark();
      auto copy = ctx.template scratch<T>(w.extent(0), w.extent(1), w.extent(2));
      copy_bytes(ctx, static_cast<std::size_t>(w.size()) * sizeof(T), w.data(), copy.data());
      packed.quantise_experts(ctx.stream(), address, first, w.extent(0), copy.data());
      ctx.synchronize();
    }
  }

  /// Returns the form of the packed copy of the weights w, or Weights::unchanged if there is none.
  template <class T>
  static Weights packed_form(const PackedWeights& packed, View<const T, 3, B> w) {
    if (const auto* matrix = packed.find_quantised(w.data())) return matrix->rounding.form;
    return packed.find(w.data(), w.extent(2)) ? Weights::bfloat16 : Weights::unchanged;
  }
  /// Copies the quantised weights that belong to the address `weights` to host memory, in the order of files
  /// (QuantisedBytes).
  /// @cost  host memory for the copy
  static void write_quantised(Context& ctx, const PackedWeights& packed, const float* weights, const QuantisedBytes& of,
                              std::byte* numbers, Bfloat16* scales) {
    const auto here = ctx.here();
    packed.write_quantised(ctx.stream(), weights, of, numbers, scales);
  }
  /// Copies numbers and scales in the order of files into memory that reserve_packed has allocated.
  /// @cost  host memory for the copy
  static void read_quantised(Context& ctx, PackedWeights& packed, const float* address, const QuantisedBytes& of,
                             const std::byte* numbers, const Bfloat16* scales) {
    const auto here = ctx.here();
    packed.read_quantised(ctx.stream(), address, of, numbers, scales);
  }

  /// Rounds the weights w into their copy in `packed` again, on the stream of ctx. It does nothing if products of T do
  /// not round their factors.
  template <class T>
  static void refresh(Context& ctx, View<const T, 3, B> w, PackedWeights& packed) requires rounds<float> {
    const auto here = ctx.here();
    if constexpr (rounds<T>) packed.round(ctx.stream(), w.data(), w.extent(0) * w.extent(1), w.extent(2));
  }

  static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    detail_::device::expect_success(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
  }
  static void release(void* p) {
    // Clears the error: it cannot be thrown here, and the check of the next launch must not report it.
    if (cudaFree(p) != cudaSuccess) cudaGetLastError();
  }
  /// Releases a buffer that a tensor has replaced by a larger one. If a captured CUDA graph may use the buffer, keeps
  /// it instead (see Retired).
  static void retire(void* p) {
    if (!detail_::device::Retired::keep(p)) release(p);
  }
  /// Overwrites memory without valid values (new, or given back) with 0xff bytes on its device, so that reads of this
  /// memory give wrong values and are noticed. It does nothing while a blocking stream is being captured, because the
  /// legacy default stream, on which it writes, cannot be used then. Errors are cleared and not thrown, because another
  /// exception may already be active; if the device has failed, the next launch reports the failure.
  static void poison(void* p, std::size_t bytes) noexcept {
    int before = 0;
    cudaPointerAttributes of_p{};
    cudaStreamCaptureStatus capturing;
    if (cudaGetDevice(&before) != cudaSuccess || cudaPointerGetAttributes(&of_p, p) != cudaSuccess ||
        cudaSetDevice(of_p.device) != cudaSuccess) {
      cudaGetLastError();
      return;
    }
    if (cudaStreamIsCapturing(cudaStreamLegacy, &capturing) != cudaSuccess ||
        cudaMemsetAsync(p, 0xff, bytes, cudaStreamLegacy) != cudaSuccess)
      cudaGetLastError();
    if (cudaSetDevice(before) != cudaSuccess) cudaGetLastError();
  }
  static void write_zeros(Context& ctx, void* p, std::size_t bytes) {
    const auto here = ctx.here();
    if (bytes > 0) detail_::device::expect_success(cudaMemsetAsync(p, 0, bytes, ctx.stream()), "cudaMemsetAsync");
  }
  template <class T>
  static void to_host(Context& ctx, Index n, const T* from, T* to) {
    expect_elements("Cuda.to_host", from);
    transfer(ctx, n, from, to, cudaMemcpyDeviceToHost);
  }
  template <class T>
  static void from_host(Context& ctx, Index n, const T* from, T* to) {
    transfer(ctx, n, from, to, cudaMemcpyHostToDevice);
  }
  /// Copies bytes between memory of any devices or the host, in the order of the stream. If two devices cannot access
  /// each other's memory, the driver copies through the host.
  static void copy_bytes(Context& ctx, std::size_t bytes, const void* from, void* to) {
    const auto here = ctx.here();
    if (bytes == 0) return;
    detail_::device::expect_success(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ctx.stream()),
                                    "cudaMemcpyAsync");
  }

  template <class F>
  static void for_each(Context& ctx, Index n, const F& f) {
    const auto here = ctx.here();
    detail_::device::for_each(ctx.stream(), n, f);
  }
  template <class F>
  static void for_tasks(Context& ctx, Index n, const F& f, Index = 0) {
    if (n > 0) f(ctx, Index(0), n);
  }
  template <class F>
  static void for_rows(Context& ctx, Index n, const F& f) {
    const auto here = ctx.here();
    detail_::device::for_rows(ctx.stream(), n, f, ctx.multiprocessors());
  }
  template <class T, class F>
  static void reduce(Context& ctx, Index n, const F& f, T* out) {
    const auto here = ctx.here();
    detail_::device::reduce<T>(ctx, n, f, out);
  }
  static void group_by(Context& ctx, View<const Index, 1, B> keys, View<Index, 1, B> offsets, View<Index, 1, B> order) {
    const auto here = ctx.here();
    if (offsets.empty()) return;
    detail_::device::group_by(ctx, keys.size(), keys.data(), offsets.extent(0) - 1, offsets.data(), order.data());
  }

  /// Sorts a table of keys by group, and writes the slots of each group and of each row (backend.hpp). Tables of up to
  /// TableTile::most_groups groups and TableTile::most_each keys in a row are sorted by counting (group_table.cuh),
  /// others by group_by.
  static void group_table(Context& ctx, View<const Index, 2, B> keys, View<Index, 1, B> offsets,
                          View<Index, 1, B> order, View<Index, 1, B> rows, View<Index, 1, B> row_offsets,
                          View<Index, 1, B> row_slots) {
    const auto here = ctx.here();
    const Index n = keys.size(), each = keys.extent(1), groups = offsets.size() - 1;
    if (!detail_::device::fits_table(n, each, groups))
      return group_by_and_back(ctx, keys, offsets, order, rows, row_offsets, row_slots);
    detail_::device::group_table(ctx, n, each, keys.data(), groups, offsets.data(), order.data(), rows.data(),
                                 row_offsets.data(), row_slots.data());
  }

  template <class T, class E>
  static void gemm(Context& ctx, View<const T, 2, B> a, bool ta, View<const T, 2, B> b, bool tb, bool accumulate,
                   View<T, 2, B> c, const E& epilogue) {
    const auto here = ctx.here();
    if (c.empty()) return;
    const Index depth = a.extent(ta ? 0 : 1);
    if (depth > 0) {
      detail_::device::gemm(ctx, c.extent(0), c.extent(1), depth, a.data(), ta, a.extent(1), b.data(), tb, b.extent(1),
                            accumulate, c.data());
    } else if (!accumulate) {
      fill(ctx, c, T(0));
    }
    if constexpr (!std::is_same_v<E, functor::Store>)
      for_each(ctx, c.size(), detail_::device::ApplyEpilogue<T, E>{c.data(), c.extent(1), epilogue});
  }

  /// Computes a matrix product and calls f for each complete row of the result. If rows have up to MostColumns::columns
  /// values, the kernel that computes the sums also calls the epilogue and f, on rows in shared memory. For rows of up
  /// to most_copied_columns values, a second kernel reads each row once and calls the epilogue and f. For even longer
  /// rows, f runs in a separate pass after the epilogue (gemm_then_rows), and reads the rows in global memory.
  template <class T, class E, class F>
  static void gemm_rows(Context& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb, View<T, 2, B> c,
                        const E& epilogue, const F& f) {
    const auto here = ctx.here();
    const Index columns = c.extent(1), depth = a.extent(1);
    detail_::device::expect_int("Cuda::gemm_rows", "a.extent(1)", depth);
    if (columns < 1 || columns > detail_::device::most_copied_columns<T>)
      return gemm_then_rows(ctx, a, b, tb, c, epilogue, f);
    if (columns > detail_::device::MostColumns::columns)
      return gemm_then(ctx, a, b, tb, c, functor::Store{}, [&](View<T, 2, B> sums) {
        // If the epilogue is Store, c already has the results, and the second kernel need not write them.
        T* const kept = std::is_same_v<E, functor::Store> ? nullptr : c.data();
        detail_::device::copied_rows(ctx.stream(), sums.extent(0), columns, sums.data(), kept, epilogue, f);
      });
    detail_::device::product_rows(ctx.stream(), ctx.multiprocessors(), c.extent(0), columns, depth, a.data(), b.data(),
                                  tb, c.data(), epilogue, f);
  }

  /// Computes a grouped product, one matrix product for each expert (backend.hpp).
  /// @param transpose  a bool, or one of the constants `as_transposed` and `as_stored`. With a constant, only the
  ///                   kernels of its case are compiled. The other grouped products accept the same values
  template <class T, class Transpose, class E>
  static void grouped_gemm(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w, Transpose transpose,
                           View<T, 2, B> c, const E& epilogue) {
    const auto here = ctx.here();
    if constexpr (rounds<T>)
      return detail_::device::bf16_gemm(ctx, g, std::array{a}, std::array{w}, transpose, c, epilogue);
    ctx.begin_product(transpose);
    grouped(ctx, g, a, std::array{w}, transpose, c, epilogue);
  }

  /// Computes a grouped product (one matrix product for each expert) whose first factor `a` is already stored in
  /// bfloat16 (see the type `Multiplied` in backend.hpp).
  template <class C, class Transpose, class E>
  static void grouped_gemm(Context& ctx, Groups<B> g, View<const Bfloat16, 2, B> a, View<const float, 3, B> w,
                           Transpose transpose, View<C, 2, B> c, const E& epilogue) requires rounds<float> {
    const auto here = ctx.here();
    detail_::device::bf16_gemm(ctx, g, std::array{a}, std::array{w}, transpose, c, epilogue);
  }
  /// Computes a sum of grouped products: c[s] = Σ_t a_t[row(s)] op(w_t[e]) for each slot s (one row of work of expert
  /// e), summed in float. row(s) is the row of a_t that the slot reads; op(w) is w or its transpose.
  template <class C, class Transpose, std::size_t Terms>
  static void grouped_gemms(Context& ctx, Groups<B> g, const std::array<View<const Bfloat16, 2, B>, Terms>& a,
                            const std::array<View<const float, 3, B>, Terms>& w, Transpose transpose,
                            View<C, 2, B> c) requires rounds<float> {
    const auto here = ctx.here();
    detail_::device::bf16_gemm(ctx, g, a, w, transpose, c, functor::Store{});
  }
  /// Computes the rows epilogue(a[row(s)] op(w[e])) of a grouped product without storing them, and calls f(lanes, s,
  /// sum) with the sum of each row's `columns` values. s is a slot in use (a row of work of expert e); row(s) is the
  /// row of `a` that it reads; op(w) is w or its transpose. `sum` is the same on every lane.
  template <class Transpose, class E, class F>
  static void grouped_gemm_sum(Context& ctx, Groups<B> g, View<const float, 2, B> a, View<const float, 3, B> w,
                               Transpose transpose, Index columns, const E& epilogue,
                               const F& f) requires rounds<float> {
    const auto here = ctx.here();
    detail_::device::bf16_gemm_sum(ctx, g, a, w, transpose, columns, epilogue, f);
  }
  /// Rounds to bfloat16, once for several products, the rows of `a` that the slots of the experts read. While the
  /// returned object lives, all grouped products that read these rows of `a` use the rounded copy.
  /// @param room  memory in which the rounded rows can be stored. Its values must not be needed, and no other code may
  ///              write to it while the object lives
  template <class C>
  [[nodiscard]] static auto rounded_once(Context& ctx, const Groups<B>& g, View<const float, 2, B> a,
                                         View<C, 2, B> room) requires rounds<float> {
    const auto here = ctx.here();
    return detail_::device::round_for_products(ctx, g, a, room);
  }

  template <class T, class Transpose, class F>
  static void grouped_gemm_rows(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w,
                                Transpose transpose, View<T, 2, B> c, const F& f) {
    grouped_gemm(ctx, g, a, w, transpose, c, functor::Store{});
    const auto here = ctx.here();
    detail_::device::for_rows(ctx.product_stream(), g.slots, functor::OnSlot<F, T, B>{f, g.offsets, c});
  }

  template <class T, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<B> g, View<const T, 2, B> a,
                           const std::array<View<const T, 3, B>, M>& up, const E& middle, View<const T, 3, B> down,
                           View<T, 2, B> c, const L& last) {
    static_assert(M == 1 || M == 2, "gatefold: grouped_pair takes one or two first matrices");
    const auto here = ctx.here();
    if constexpr (rounds<T>) return detail_::device::bf16_pair(ctx, g, a, up, middle, down, c, last);
    ctx.begin_product(false);
    const auto mark = ctx.mark();
    auto hidden = ctx.template scratch<T>(g.slots, down.extent(1));
    grouped(ctx, g, a, up, false, hidden, middle);
    grouped(ctx, g.in_slot_order(), View<const T, 2, B>(hidden), std::array{down}, false, c, last);
  }

  /// Computes two grouped products, one after the other, with a result `c` that is stored in bfloat16 (see grouped_pair
  /// and the type `SlotValue` in backend.hpp).
  template <std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<B> g, View<const float, 2, B> a,
                           const std::array<View<const float, 3, B>, M>& up, const E& middle,
                           View<const float, 3, B> down, View<Bfloat16, 2, B> c, const L& last) requires rounds<float> {
    const auto here = ctx.here();
    detail_::device::bf16_pair(ctx, g, a, up, middle, down, c, last);
  }

  /// Computes the gradient of each expert's weights, a sum over the expert's slots (rows of work). Without
  /// `accumulate`, grouped_outer and grouped_sum store their sums instead of adding them: they do not read the old
  /// values, and an expert without slots gets 0.
  template <class T>
  static void grouped_outer(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 2, B> dc, View<T, 3, B> dw,
                            bool accumulate = true, View<const Index, 1, B> dc_rows = {}) {
    const auto here = ctx.here();
    detail_::device::expect_int("Cuda::grouped_outer", "g.slots", g.slots);
    if constexpr (rounds<T>) return detail_::device::bf16_outer(ctx, g, a, dc, dc_rows, accumulate, dw);
    if (ctx.options().blas_experts)
      return detail_::device::blas_slots_are_depth(ctx, g, a, dc, dc_rows, accumulate, dw);
    constexpr auto along_lines = detail_::device::Layout::along_lines;
    detail_::device::slots_are_depth(ctx,
                                     detail_::device::operand<T>(along_lines, a.data(), a.extent(1), g.rows.data()),
                                     detail_::device::operand<T>(along_lines, dc.data(), dc.extent(1), dc_rows.data()),
                                     g.offsets.data(), g.experts(), dw.extent(1), dw.extent(2), accumulate, dw.data());
  }

  template <class A, class D>
  static void grouped_outer(Context& ctx, Groups<B> g, View<const A, 2, B> a, View<const D, 2, B> dc,
                            View<float, 3, B> dw, bool accumulate = true,
                            View<const Index, 1, B> dc_rows = {}) requires(rounds<float> &&
                                                                           (std::is_same_v<A, Bfloat16> ||
                                                                            std::is_same_v<D, Bfloat16>)) {
    const auto here = ctx.here();
    detail_::device::bf16_outer(ctx, g, a, dc, dc_rows, accumulate, dw);
  }

  template <class T>
  static void grouped_sum(Context& ctx, Groups<B> g, View<const T, 2, B> dc, View<T, 2, B> db, bool accumulate = true,
                          View<const Index, 1, B> dc_rows = {}, In<T, 1, B> weight = {}) {
    const auto here = ctx.here();
    detail_::device::grouped_sum(ctx, g.offsets.data(), g.experts(), g.slots,
                                 detail_::device::SlotValues<T>{dc.data(), dc_rows.data(), weight.data(), db.extent(1)},
                                 accumulate, db.data());
  }

 private:
  template <class T>
  static void expect_quantisable() {
    expect(std::is_same_v<T, float>, "freeze", "weights", "Weights::unchanged for parameters of double",
           "a form of 8 or 4 bits");
  }

  template <class T>
  static void transfer(Context& ctx, Index n, const T* from, T* to, cudaMemcpyKind kind) {
    const auto here = ctx.here();
    if (n == 0) return;
    detail_::device::expect_success(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(n) * sizeof(T), kind, ctx.stream()), "cudaMemcpyAsync");
    ctx.synchronize();
  }

  /// Computes a grouped product: c[s] = epilogue(a[row(s)] op(w[e])) for each slot s (one row of work of expert e).
  /// row(s) is the row of `a` that the slot reads; op(w) is w or its transpose. If the weights have copies of 8 or 4
  /// bits, the product reads these copies. Otherwise it reads bfloat16 copies of the weights if all weights are packed,
  /// `transpose` is false, cuBLAS does not compute the product, and the backend does not round factors itself. In all
  /// other cases it reads the original weights.
  template <class T, std::size_t M, class E>
  static void grouped(Context& ctx, Groups<B> g, View<const T, 2, B> a, const std::array<View<const T, 3, B>, M>& w,
                      bool transpose, View<T, 2, B> c, const E& epilogue) {
    using detail_::device::Layout;
    detail_::device::expect_int("Cuda::grouped_gemm", "a.extent(1)", a.extent(1));
    const auto of_a = detail_::device::operand<T>(Layout::along_depth, a.data(), a.extent(1), g.rows.data());
    if constexpr (std::is_same_v<T, float>) {
      detail_::device::Each<T, static_cast<int>(M), detail_::device::QuantisedMatrix> b;
      std::size_t count = 0;
      for (std::size_t m = 0; m < M; ++m)
        if (const auto* matrix = ctx.quantised(w[m].data())) {
          b.of[m] = *matrix;
          b.of[m].transposed = transpose;
          ++count;
        }
      expect(count == 0 || count == M, "freeze", "weights",
             "the first two matrices of an expert quantised, or none of them", "one of them");
      if (count > 0)
        return detail_::device::quantised_slots_are_rows(ctx, of_a, b, g.offsets.data(), g.experts(), g.slots,
                                                         c.extent(1), a.extent(1), c.data(), epilogue);
    }
    for (const auto& matrix : w) expect_elements("Cuda.grouped_gemm", matrix.data());
    if (ctx.options().blas_experts) return detail_::device::blas_slots_are_rows(ctx, g, a, w, transpose, c, epilogue);
    bool rounded = !transpose && !B::template rounds<float>;
    for (const auto& matrix : w) rounded = rounded && ctx.packed(matrix.data(), matrix.extent(2));
    detail_::device::Each<T, static_cast<int>(M)> b;
    for (std::size_t m = 0; m < M; ++m) {
      const Index stride = rounded ? bf16_stride(w[m].extent(2)) : w[m].extent(2);
      b.of[m] = rounded ? detail_::device::operand<T>(Layout::rounded, ctx.packed(w[m].data(), w[m].extent(2)), stride)
                        : detail_::device::operand<T>(transpose ? Layout::along_depth : Layout::along_lines,
                                                      w[m].data(), stride);
    }
    const Index step = w[0].extent(1) * (rounded ? bf16_stride(w[0].extent(2)) * Index(sizeof(Bfloat16))
                                                 : w[0].extent(2) * Index(sizeof(T)));
    detail_::device::slots_are_rows(ctx, of_a, b, step, g.offsets.data(), g.experts(), g.slots, c.extent(1),
                                    a.extent(1), c.data(), epilogue);
  }
};

}  // namespace gatefold::detail_::device
