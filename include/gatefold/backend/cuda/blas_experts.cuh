#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Grouped products (one matrix product for each expert) by cuBLAS, for contexts with Options::blas_experts. cuBLAS
/// reads the sizes from host memory, but the number of rows of each expert is in device memory. A product therefore
/// copies the E + 1 offsets of the experts' rows to the host and waits for the copy. Products of the same backward pass
/// share one copy (OffsetsOnHost). A CUDA graph cannot capture these products.
namespace gatefold::detail_::device {

/// A host copy of the offsets that a context's latest grouped product has used (expert e has the rows from offsets[e]
/// to offsets[e + 1] − 1). Later products of the same backward pass use the copy instead of reading the offsets from
/// the device again.
///
/// Code that could write other offsets discards the copy: all primitives except for grouped products, and code that
/// gets the stream or the cuBLAS handle of the context. Grouped products keep the copy, because they write only
/// floating-point values and no offsets. A product of a forward pass is recognised by its untransposed weights. It
/// always reads the offsets from the device, because one context can run forward passes of many plans that other
/// contexts write. A backward pass has the same plan as its forward pass, so its products can use the copy.
class OffsetsOnHost {
 public:
  void forget() { known_ = nullptr; }
  /// Returns the values of `offsets` in host memory. If there is no copy of them yet, it copies them on `stream` and
  /// waits for the copy.
  template <class B>
  const std::vector<Index>& of(cudaStream_t stream, View<const Index, 1, B> offsets) {
    if (known_ == offsets.data() && static_cast<Index>(values_.size()) == offsets.size()) {
      GATEFOLD_ASSERT(values_ == copied(stream, offsets),
                      "Cuda: offsets must not change between two products of one backward");
      return values_;
    }
    forget();
    values_ = copied(stream, offsets);
    known_ = offsets.data();
    return values_;
  }

 private:
  template <class B>
  static std::vector<Index> copied(cudaStream_t stream, View<const Index, 1, B> offsets) {
    std::vector<Index> values(static_cast<std::size_t>(offsets.size()));
    expect_success(
        cudaMemcpyAsync(values.data(), offsets.data(), values.size() * sizeof(Index), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return values;
  }

  const Index* known_ = nullptr;
  std::vector<Index> values_;
};

/// Writes pointers to device memory: to[i] = pointers[i]. The pointers are arguments of the kernel launch, so that the
/// host need not wait for a copy.
struct StorePointers {
  static constexpr std::size_t most = 480;  // limited, because the arguments of a kernel launch have at most 4096 bytes
  const void** to;
  const void* pointers[most];
  __device__ void operator()(Index i) const { to[i] = pointers[i]; }
};

/// Gathers the rows of `from` into slot order: to[s, :] = from[row(s), :] for each slot s in use. A slot is one row of
/// work of an expert; row(s) is the row of `from` that slot s reads.
template <class T, class B>
struct GatherSlots {
  Groups<B> groups;
  Index columns;
  const T* from;
  T* to;
  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, Index s) const {
    if (s < groups.offsets(0) || s >= groups.offsets(groups.experts())) return;
    const T* row = from + groups.row(s) * columns;
    for (Index j = lanes.lane; j < columns; j += lanes.size) to[s * columns + j] = row[j];
  }
};
/// Applies an epilogue (for example bias and activation) to the sums of each slot in use: c[s, :] = epilogue(v_0[s, :],
/// …). A slot is one row of work of an expert, and v_m are the sums of matrix m.
template <class T, class B, int Matrices, class E>
struct FinishSlots {
  Groups<B> groups;
  Index columns;
  const T* v[Matrices];  // the sums of each matrix; null if all of them are 0
  T* c;
  E epilogue;
  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, Index s) const {
    const Index expert = groups.expert(s);
    if (expert < 0) return;
    for (Index j = lanes.lane; j < columns; j += lanes.size) {
      const Index at = s * columns + j;
      c[at] = finished<Matrices>(epilogue, expert, s, j, value(0, at), value(Matrices - 1, at));
    }
  }

 private:
  __device__ T value(int m, Index at) const { return v[m] ? v[m][at] : T(0); }
};

/// Collects the products of all experts that have rows, and computes them in one call of cuBLAS: c_e = op(a_e) op(b_e),
/// added to the old c_e if `accumulate` is true. op is the identity or the transpose. The matrices are in column-major
/// order.
template <class T>
class BlasGroups {
 public:
  BlasGroups(cublasOperation_t ta, cublasOperation_t tb, bool accumulate, cublasComputeType_t compute)
      : ta_(ta), tb_(tb), beta_(accumulate ? 1 : 0), compute_(compute) {}

  void add(Index m, Index n, Index k, const T* a, Index lda, const T* b, Index ldb, T* c, Index ldc) {
    for (const auto& [name, list, value] : {std::tuple{"m", &m_, m},
                                            {"n", &n_, n},
                                            {"k", &k_, k},
                                            {"lda", &lda_, lda},
                                            {"ldb", &ldb_, ldb},
                                            {"ldc", &ldc_, ldc}}) {
      expect_int("Cuda: cuBLAS experts", name, value);
      list->push_back(static_cast<int>(value));
    }
    pointers_[0].push_back(a);
    pointers_[1].push_back(b);
    pointers_[2].push_back(c);
  }
  template <class Context>
  void run(Context& ctx) {
    const std::size_t count = m_.size();
    if (count == 0) return;
    const auto mark = ctx.mark();
    const void** p = ctx.template scratch<const void*>(3, static_cast<Index>(count)).data();
    for (std::size_t list = 0; list < 3; ++list) store(ctx.product_stream(), pointers_[list], p + list * count);
    const std::vector<cublasOperation_t> ta(count, ta_), tb(count, tb_);
    const std::vector<T> alpha(count, T(1)), beta(count, beta_);
    const std::vector<int> ones(count, 1);
    constexpr cudaDataType_t type = blas_type<T>;
    expect_success(cublasGemmGroupedBatchedEx(ctx.product_blas(), ta.data(), tb.data(), m_.data(), n_.data(), k_.data(),
                                              alpha.data(), p, type, lda_.data(), p + count, type, ldb_.data(),
                                              beta.data(), const_cast<void* const*>(p + 2 * count), type, ldc_.data(),
                                              static_cast<int>(count), ones.data(), compute_),
                   "cublasGemmGroupedBatchedEx");
  }

 private:
  static void store(cudaStream_t stream, const std::vector<const void*>& pointers, const void** to) {
    for (std::size_t first = 0; first < pointers.size(); first += StorePointers::most) {
      const std::size_t count = std::min(StorePointers::most, pointers.size() - first);
      StorePointers part{to + first, {}};
      std::copy_n(pointers.data() + first, count, part.pointers);
      for_each(stream, static_cast<Index>(count), part);
    }
  }

  cublasOperation_t ta_, tb_;
  T beta_;
  cublasComputeType_t compute_;
  std::vector<int> m_, n_, k_, lda_, ldb_, ldc_;
  std::array<std::vector<const void*>, 3> pointers_;
};

/// Returns the rows of `a` in slot order: one row for each slot (row of work of an expert), sorted by expert. The
/// result is `a` itself if the slots have no row numbers, otherwise a copy in scratch memory.
template <class T, class Context, class B>
const T* rows_of_slots(Context& ctx, const Groups<B>& g, View<const T, 2, B> a) {
  if (!g.rows.data()) return a.data();
  auto gathered = ctx.template scratch<T>(g.slots, a.extent(1));
  for_rows(ctx.product_stream(), g.slots, GatherSlots<T, B>{g, a.extent(1), a.data(), gathered.data()});
  return gathered.data();
}

/// Computes a grouped product with cuBLAS: c[s] = epilogue(a[row(s)] op(w[e])) for each slot s (one row of work of
/// expert e). row(s) is the row of `a` that the slot reads; op transposes w[e] if `transpose` is true. With two
/// matrices w, the epilogue gets both sums.
/// @order  chosen by cuBLAS
template <class T, class Context, class B, std::size_t M, class E>
void blas_slots_are_rows(Context& ctx, const Groups<B>& g, View<const T, 2, B> a,
                         const std::array<View<const T, 3, B>, M>& w, bool transpose, View<T, 2, B> c,
                         const E& epilogue) {
  const auto mark = ctx.mark();
  const std::vector<Index>& offsets = ctx.on_host(g.offsets);
  const Index columns = c.extent(1), depth = a.extent(1);
  const T* rows = rows_of_slots(ctx, g, a);
  FinishSlots<T, B, static_cast<int>(M), E> finish{g, columns, {}, c.data(), epilogue};
  BlasGroups<T> groups(transpose ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, false, blas_compute<T>(ctx));
  for (std::size_t m = 0; m < M && depth > 0; ++m) {
    // The sums are not stored in c, because the epilogue may read the old values of c.
    T* v = ctx.template scratch<T>(g.slots, columns).data();
    finish.v[m] = v;
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
      if (const Index first = offsets[e], count = offsets[e + 1] - first; count > 0 && columns > 0)
        groups.add(columns, count, depth, w[m].data() + static_cast<Index>(e) * depth * columns, w[m].extent(2),
                   rows + first * depth, depth, v + first * columns, columns);
  }
  groups.run(ctx);
  for_rows(ctx.product_stream(), g.slots, finish);
}

/// Computes gradients of weights with cuBLAS: dw[e] += Σ_s a[row(s)]ᵀ dc[dc_rows[s]] over the slots s (rows of work) of
/// expert e. row(s) is the row of `a` that a slot reads. If dc_rows is empty, row s of dc is used. Without
/// `accumulate`, dw[e] is overwritten with the sum.
/// @order  chosen by cuBLAS
template <class T, class Context, class B>
void blas_slots_are_depth(Context& ctx, const Groups<B>& g, View<const T, 2, B> a, View<const T, 2, B> dc,
                          View<const Index, 1, B> dc_rows, bool accumulate, View<T, 3, B> dw) {
  const auto mark = ctx.mark();
  const std::vector<Index>& offsets = ctx.on_host(g.offsets);
  const Index rows = dw.extent(1), columns = dw.extent(2);
  if (rows * columns == 0) return;
  const T* in_order = rows_of_slots(ctx, g, a);
  const T* dc_in_order = rows_of_slots(ctx, Groups<B>{g.offsets, dc_rows, g.slots}, dc);
  BlasGroups<T> groups(CUBLAS_OP_N, CUBLAS_OP_T, accumulate, blas_compute<T>(ctx));
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const Index first = offsets[e], count = offsets[e + 1] - first;
    T* const to = dw.data() + static_cast<Index>(e) * rows * columns;
    if (count > 0) {
      groups.add(columns, rows, count, dc_in_order + first * columns, columns, in_order + first * rows, rows, to,
                 columns);
    } else if (!accumulate) {
      expect_success(cudaMemsetAsync(to, 0, static_cast<std::size_t>(rows * columns) * sizeof(T), ctx.product_stream()),
                     "cudaMemsetAsync");
    }
  }
  groups.run(ctx);
}

}  // namespace gatefold::detail_::device
