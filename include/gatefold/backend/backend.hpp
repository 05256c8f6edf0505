#pragma once

#include <array>
#include <concepts>
#include <cstddef>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

namespace detail_::backend {

/// Stand-in for every functor a policy passes to a primitive.
struct AnyFunctor {
  GATEFOLD_HD double operator()(Index) const { return 0; }
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes&, Index) const {}
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes&, Index, double*) const {}
};

/// Stands for what is run on ranges of tasks where a backend's functions are looked for.
struct AnyTasks {
  template <class Context>
  void operator()(Context&, Index, Index) const {}
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

/// The porting contract: a backend is a type with a Context and these static primitives. Everything else in the library
/// is written in them.
///
///     for_each(ctx, n, f)                f(i) for i < n, in any order. A functor that says `using Element = T` is
///                                        called with (at, i) instead, and loads and stores through `at`: on the CPU
///                                        it runs on registers (epilogue.hpp)
///     for_rows(ctx, n, f)                f(lanes, row) for row < n; the lanes share the row (backend/lanes.hpp)
///     for_tasks(ctx, n, f)               f(context, first, count) for ranges that cover tasks 0 to n - 1, as long as
///                                        suits the backend: a task calls primitives with the context it is given,
///                                        writes what no other task reads or writes, and may run beside others
///     reduce<T>(ctx, n, f, out)          *out += Σ_i f(i), summed in a fixed order
///     group_by(ctx, keys, offsets, order) stable: order lists the positions i with keys[i] = 0, then 1, …;
///                                        offsets [G + 1] says where each key begins; negative keys are left out
///     group_table(ctx, keys, offsets, order, rows, row_offsets, row_slots)
///                                        group_by of a table [N, K] of keys in [0, G), and back: rows[s] is the row of
///                                        slot s; row_slots lists the slots of each row, ascending, from row_offsets on
///     gemm(ctx, a, ta, b, tb, accumulate, c, epilogue)        c (+)= op(a) op(b); its epilogue does not read c
///     gemm_rows(ctx, a, b, tb, c, epilogue, f)                c = a op(b), and f(lanes, n, row) for each row of c once
///                                        it is complete: `row` points to its values, in c or in a copy at hand. A c
///                                        without memory (null, with its extents) is not kept: f may write to row
///     grouped_gemm(ctx, groups, a, w, transpose, c, epilogue) c[s] = a[row(s)] op(w[e]); transpose is a bool, or
///                                        `as_transposed` or `as_stored` (groups.hpp), here and below
///     grouped_gemm_rows(ctx, groups, a, w, transpose, c, f)   c likewise, and f(lanes, s, row) for slots in use: `row`
///                                        points to the values of c[s], complete, which f may change; f writes no Index
///     grouped_pair(ctx, groups, a, {up} or {up, up}, middle, down, c, last)
///                                        c[s] = last(middle(a[row(s)] up[e], …) down[e]): two products in a row whose
///                                        result in between a backend need not write to memory
///     grouped_outer(ctx, groups, a, dc, dw, accumulate = true, dc_rows = {})
///                                        dw[e] (+)= Σ_s a[row(s)]ᵀ dc[s], or dc[dc_rows[s]] where these are given;
///                                        without `accumulate` 0 for an expert without slots
///     grouped_sum(ctx, groups, dc, db, accumulate = true, dc_rows = {}, weight = {})
///                                        db[e] (+)= Σ_s dc[s], or weight[s] dc[dc_rows[s]], whichever are given
///     write_zeros(ctx, p, bytes)         elements that are 0, on any thread of the host
///     to_host / from_host(ctx, n, from, to)                   explicit copies, finished on return
///     copy_bytes(ctx, bytes, from, to), ctx.synchronize()     of a device whose contexts are shards (dist/memory.hpp):
///                                        a copy in the order of ctx, from memory of any context or of the host to
///                                        any, and the wait for what was asked of ctx
///     ctx.here()                         while the returned object lives, other threads are refused with an
///                                        ArgumentError, and `allocate` takes memory where ctx works: layers, trainers
///                                        and zeros_like hold it from their first line
///
/// @order  results are bitwise the same for any number of threads, and an element of a product depends on its own row
///         and the weights alone
template <class B>
concept Backend = detail_::backend::Memory<B> && detail_::backend::Loops<B> && detail_::backend::Sorting<B> &&
    detail_::backend::Products<B>;

namespace detail_::backend {

/// B, or what it names as its FullPrecision.
template <class B>
struct Full {
  using Type = B;
};
/// Of one that names it.
template <class B>
requires requires { typename B::FullPrecision; }
struct Full<B> {
  using Type = typename B::FullPrecision;
};

/// T, or what B names as Stored<T>.
template <class T, class B>
struct Kept {
  using Type = T;
};
/// Of one that names it.
template <class T, class B>
requires requires { typename B::template Stored<T>; }
struct Kept<T, B> {
  using Type = typename B::template Stored<T>;
};

/// T, or what B names as Multiplied<T>.
template <class T, class B>
struct Factor {
  using Type = T;
};
/// Of one that names it.
template <class T, class B>
requires requires { typename B::template Multiplied<T>; }
struct Factor<T, B> {
  using Type = typename B::template Multiplied<T>;
};

/// T, or what B names as SlotValue<T>.
template <class T, class B>
struct OfSlot {
  using Type = T;
};
/// Of one that names it.
template <class T, class B>
requires requires { typename B::template SlotValue<T>; }
struct OfSlot<T, B> {
  using Type = typename B::template SlotValue<T>;
};

}  // namespace detail_::backend

/// How B stores values of T that an expert keeps for its backward: as they are, or rounded (CpuBf16, CudaBf16: floats
/// as Bfloat16). They are read and written through `at` (epilogue.hpp), as T.
template <class T, class B>
using Stored = typename detail_::backend::Kept<T, B>::Type;

/// How B stores values of T that are made for its grouped products alone: as they are, or rounded as those would round
/// them (CudaBf16: floats as Bfloat16). Its grouped_gemm takes them for a, grouped_outer for a and dc.
template <class T, class B>
using Multiplied = typename detail_::backend::Factor<T, B>::Type;

/// How B stores what the slots of a mixture hold between experts and items, their outputs and the adjoints of their
/// items, where the experts take it so (stores_slots): as they are, or rounded (CudaBf16: floats as Bfloat16). Its
/// grouped_gemm and grouped_pair take them for c.
template <class T, class B>
using SlotValue = typename detail_::backend::OfSlot<T, B>::Type;

/// The primitives of B with grouped products that multiply what they are given, for gates and attention: a backend may
/// round what experts multiply (CpuBf16, CudaBf16), and then names them.
template <class B>
using FullPrecision = typename detail_::backend::Full<B>::Type;

}  // namespace gatefold
