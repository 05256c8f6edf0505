#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/bfloat16.hpp"

/// The contract of a backend. A backend is the code that computes on a CPU or GPU. It is a type with a member type
/// Context and the static functions below, which are called primitives. The rest of the library calls a backend only
/// through these primitives.
///
///     for_each(ctx, n, f)                calls f(i) for i < n, in any order. If f declares `using Element = T`, calls
///                                        f(at, i) instead, and f loads and stores through the accessor `at`. On the
///                                        CPU, one call can process a whole SIMD register of elements (epilogue.hpp)
///     for_rows(ctx, n, f)                calls f(lanes, row) for row < n; `lanes` are the threads that compute the row
///                                        together (backend/lanes.hpp)
///     for_tasks(ctx, n, f, work = 0)     calls f(context, first, count) for ranges that cover tasks 0 to n - 1. The
///                                        backend chooses the lengths of the ranges. A task calls primitives with the
///                                        context that it gets, and writes only memory that no other task reads or
///                                        writes, because tasks can run at the same time. `work` is the number of
///                                        multiply-adds of all tasks (0: not known, treated as large). If it is small,
///                                        a backend can use fewer threads
///     reduce<T>(ctx, n, f, out)          *out += Σ_i f(i), summed in a fixed order
///     group_by(ctx, keys, offsets, order) a stable sort: `order` lists the positions i with keys[i] = 0, then those
///                                        with keys[i] = 1, and so on; offsets [G + 1] has the first position of each
///                                        key in `order`. Negative keys are left out
///     group_table(ctx, keys, offsets, order, rows, row_offsets, row_slots)
///                                        group_by of a table [N, K] of keys in [0, G). Slot s is position s in
///                                        `order`. Also writes rows[s], the row of slot s, and row_slots, which has the
///                                        slots of row n, ascending, from index row_offsets[n] on
///     gemm(ctx, a, ta, b, tb, accumulate, c, epilogue)        c = op(a) op(b), or c += op(a) op(b) if `accumulate` is
///                                        true (below written as (+)=). op transposes a if `ta` is true, and b if `tb`
///                                        is true. The epilogue must not read c
///     gemm_rows(ctx, a, b, tb, c, epilogue, f)                c = a op(b), then f(lanes, n, row) for each complete row
///                                        of c: `row` points to its values, in c or in a copy in a cache. If the
///                                        pointer of c is null (its extents are used), c is not stored, and f can
///                                        change the values of `row`
///     grouped_gemm(ctx, groups, a, w, transpose, c, epilogue) c[s] = a[row(s)] op(w[e]) for each slot s of expert e.
///                                        row(s) is the row of `a` that slot s reads (groups.hpp). op transposes w[e]
///                                        if `transpose` is true. `transpose` is a bool, or `as_transposed` or
///                                        `as_stored`, here and below
///     grouped_gemm_rows(ctx, groups, a, w, transpose, c, f)   c as in grouped_gemm, then f(lanes, s, row) for slots s
///                                        in use: `row` points to the complete values of c[s]. f can change these
///                                        values. f must not write elements of type Index, because the primitive reads
///                                        the offsets of `groups` while calls of f run
///     grouped_pair(ctx, groups, a, {up} or {up, up}, middle, down, c, last)
///                                        c[s] = last(middle(a[row(s)] up[e], …) down[e]): two products, one after the
///                                        other. A backend need not write the result of the first product to memory
///     grouped_outer(ctx, groups, a, dc, dw, accumulate = true, dc_rows = {})
///                                        dw[e] (+)= Σ_s a[row(s)]ᵀ dc[s], or dc[dc_rows[s]] if dc_rows is given;
///                                        without `accumulate`, dw[e] = 0 for an expert without slots
///     grouped_sum(ctx, groups, dc, db, accumulate = true, dc_rows = {}, weight = {})
///                                        db[e] (+)= Σ_s weight[s] dc[dc_rows[s]]. Without `weight` all factors are 1;
///                                        without `dc_rows` slot s reads dc[s]
///     write_zeros(ctx, p, bytes)         writes zeros. On a CPU, any thread can call it at any time. On a device, it
///                                        throws ArgumentError while another thread uses ctx
///     to_host / from_host(ctx, n, from, to)                   copies between B and the host, finished on return
///     copy_bytes(ctx, bytes, from, to), ctx.synchronize()     only needed if shards use contexts of a device
///                                        (distributed/memory.hpp). copy_bytes copies in the order of ctx, between
///                                        memory of any contexts or the host; synchronize waits until all work of ctx
///                                        is finished
///     ctx.here()                         while the returned object lives, other threads that use ctx get an
///                                        ArgumentError, and `allocate` takes memory of the device of ctx. Layers,
///                                        trainers and zeros_like hold this object from their first line on
///
/// @order  results are bitwise the same for any number of threads; an element of a product depends only on its own row
///         of the left factor and on the weights (with cuBLAS, also on the sizes of a gemm: cuda/plain_product.cuh)
namespace gatefold {

namespace detail_::backend {

/// A placeholder functor for the concepts that check a backend. It has every signature with which the primitives (the
/// functions of a backend) call a functor.
struct AnyFunctor {
  GATEFOLD_HD double operator()(Index) const { return 0; }
  GATEFOLD_HD void operator()(const auto&, Index) const {}
  GATEFOLD_HD void operator()(const auto&, Index, double*) const {}
};

/// A placeholder for the functor that for_tasks runs on ranges of tasks. The concept that checks the loops of a backend
/// uses it.
struct AnyTasks {
  void operator()(auto&, Index, Index) const {}
};

template <class B>
concept Memory = requires(std::size_t bytes, void* p, typename B::Context& ctx, const double* from, double* to) {
  { B::is_host } -> std::convertible_to<bool>;
  { B::allocate(bytes) } -> std::same_as<void*>;
  B::release(p);
  B::poison(p, bytes);
  B::write_zeros(ctx, p, bytes);
  B::to_host(ctx, Index(1), from, to);
  B::from_host(ctx, Index(1), from, to);
  requires std::same_as<typename B::Context::Backend, B>;
  ctx.mark();
  ctx.here();
  ctx.template scratch<double>(Index(1), Index(1));
  *ctx.template acquire<int>();
};

template <class B>
concept Loops = requires(typename B::Context& ctx, AnyFunctor f, double* out) {
  B::for_each(ctx, Index(1), f);
  B::for_rows(ctx, Index(1), f);
  B::for_tasks(ctx, Index(1), AnyTasks{});
  B::for_tasks(ctx, Index(1), AnyTasks{}, Index(1));
  B::template reduce<double>(ctx, Index(1), f, out);
};

template <class B>
concept Sorting = requires(typename B::Context& ctx, View<const Index, 1, B> keys, View<Index, 1, B> out) {
  B::group_by(ctx, keys, out, out);
  B::group_table(ctx, View<const Index, 2, B>{}, out, out, out, out, out);
};

template <class B>
concept Products = requires(typename B::Context& ctx, Groups<B> g, View<const double, 2, B> a,
                            View<const double, 3, B> w, View<double, 3, B> dw, View<double, 2, B> c,
                            View<const Index, 1, B> rows, View<const double, 1, B> weight) {
  B::gemm(ctx, a, false, a, true, false, c, functor::Store{});
  B::gemm_rows(ctx, a, a, true, c, functor::Store{}, AnyFunctor{});
  B::grouped_gemm(ctx, g, a, w, false, c, functor::Store{});
  B::grouped_gemm_rows(ctx, g, a, w, false, c, AnyFunctor{});
  B::grouped_pair(ctx, g, a, std::array{w}, functor::Store{}, w, c, functor::Store{});
  B::grouped_outer(ctx, g, a, a, dw, true, rows);
  B::grouped_sum(ctx, g, a, c, true, rows, weight);
};

}  // namespace detail_::backend

/// True for a type that has all primitives of a backend.
template <class B>
concept Backend = detail_::backend::Memory<B> && detail_::backend::Loops<B> && detail_::backend::Sorting<B> &&
    detail_::backend::Products<B>;

namespace detail_::backend {

/// Implements the alias FullPrecision<B>. Type is B::FullPrecision if the backend B has this member type, and B
/// otherwise.
template <class B>
struct Full {
  using Type = B;
};
template <class B>
requires requires { typename B::FullPrecision; }
struct Full<B> {
  using Type = typename B::FullPrecision;
};

/// Implements the alias Stored<T, B>: Type is B::Stored<T> if the backend B has this member type, and T otherwise.
template <class T, class B>
struct Kept {
  using Type = T;
};
template <class T, class B>
requires requires { typename B::template Stored<T>; }
struct Kept<T, B> {
  using Type = typename B::template Stored<T>;
};

/// Implements the alias Multiplied<T, B>: Type is B::Multiplied<T> if the backend B has this member type, and T
/// otherwise.
template <class T, class B>
struct Factor {
  using Type = T;
};
template <class T, class B>
requires requires { typename B::template Multiplied<T>; }
struct Factor<T, B> {
  using Type = typename B::template Multiplied<T>;
};

/// Implements the alias SlotValue<T, B>: Type is B::SlotValue<T> if the backend B has this member type, and T
/// otherwise.
template <class T, class B>
struct OfSlot {
  using Type = T;
};
template <class T, class B>
requires requires { typename B::template SlotValue<T>; }
struct OfSlot<T, B> {
  using Type = typename B::template SlotValue<T>;
};

}  // namespace detail_::backend

/// The type in which the backend B stores values that an expert saves for its backward pass. It is T, or a smaller
/// type: CpuBf16 and CudaBf16 store floats as Bfloat16. Functors still read and write these values as T, because the
/// accessor `at` (epilogue.hpp) converts them.
template <class T, class B>
using Stored = typename detail_::backend::Kept<T, B>::Type;

/// The type in which the backend B stores values that are used only as operands of its grouped products (one matrix
/// product per expert). It is T, or the type to which the products would round their operands anyway: CudaBf16 stores
/// floats as Bfloat16. grouped_gemm accepts this type for `a`, grouped_outer for `a` and `dc`.
template <class T, class B>
using Multiplied = typename detail_::backend::Factor<T, B>::Type;

/// The type in which the backend B stores the outputs of the experts of a mixture, and the gradients of the experts'
/// inputs, if the experts support it (`stores_slots`). It is T, or a smaller type: CudaBf16 stores floats as Bfloat16.
/// grouped_gemm and grouped_pair accept this type for their result `c`.
template <class T, class B>
using SlotValue = typename detail_::backend::OfSlot<T, B>::Type;

/// The backend whose grouped products (one matrix product per expert) do not round their operands. It is B itself, or
/// B::FullPrecision if B rounds the operands of experts to bfloat16 (CpuBf16, CudaBf16). Gates and attention use it.
template <class B>
using FullPrecision = typename detail_::backend::Full<B>::Type;

/// Rounds the matrix `a` once for several grouped products (one matrix product per expert). While the returned object
/// lives, products with the arguments `a` and `groups` read the rounded copy instead of rounding `a` again. Does
/// nothing if Multiplied<T, B> is T.
/// @param room  memory for the rounded copy, with one row per slot. Its old values can be overwritten, and no other
///         code may write to it while the returned object lives
template <class B, class Context, class T, class C>
[[nodiscard]] auto rounded_once(Context& ctx, const Groups<B>& groups, View<const T, 2, B> a, View<C, 2, B> room) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    struct Nothing {
      ~Nothing() {}  // NOLINT(modernize-use-equals-default): if defaulted, compilers warn of an unused variable
    };
    return Nothing{};
  } else {
    return B::rounded_once(ctx, groups, a, room);
  }
}

/// Computes c[s] = a[s] w[e]ᵀ + b[s] v[e]ᵀ for each slot s (a row of work) of each expert e. The first product is
/// computed before the second is added to it. `slots` must have no row numbers.
/// @tparam F  the type of the values of a and b: T, or Multiplied<T, B>
/// @tparam Z  the type of the values of c: T, or SlotValue<T, B>
template <class T, class F, class Z, class B, class Context>
void sum_of_two_products(Context& ctx, const Groups<B>& slots, View<const F, 2, B> a, View<const T, 3, B> w,
                         View<const F, 2, B> b, View<const T, 3, B> v, View<Z, 2, B> c) {
  if constexpr (std::is_same_v<T, F>) {
    const auto mark = ctx.mark();
    const View<T, 2, B> first = ctx.template scratch<T>(c.extent(0), c.extent(1));
    B::grouped_gemm(ctx, slots, a, w, as_transposed, first, functor::Store{});
    B::grouped_gemm(ctx, slots, b, v, as_transposed, c, functor::AddTo<T, B>{first});
  } else {
    B::grouped_gemms(ctx, slots, std::array{a, b}, std::array{w, v}, as_transposed, c);
  }
}

/// The option of a backend to multiply the operands of grouped products (one matrix product per expert) without
/// rounding them. Of<T> is the type to which a T is converted before it is multiplied: T itself.
struct AsTheyAre {
  template <class T>
  using Of = T;
};
/// The option of a backend to round the float operands of grouped products (one matrix product per expert) to bfloat16;
/// doubles are not rounded. Of<T> is the type to which a T is converted before it is multiplied.
struct RoundedFloats {
  template <class T>
  using Of = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
};

}  // namespace gatefold
