#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <new>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"

namespace gatefold::test {

template <class B>
class NaiveContext : public Scratch<B>, public ObjectPool {
 public:
  using Backend = B;
  NaiveContext() = default;
  /// For code that passes a number of threads; this backend always uses one.
  explicit NaiveContext(int) {}
};

/// The primitives in their plainest form: one loop for each equation, one lane, one element at a time, without Eigen.
/// Tests compare other backends with this one. Any compiler can compile it, nvcc too.
/// @param Operand  Operand::of(v) returns the number that grouped products multiply for a value v, for example v
///         rounded
template <class B, class Operand, class ContextT = NaiveContext<B>>
struct NaivePrimitives {
  static constexpr bool is_host = true;
  using Context = ContextT;

  static void* allocate(std::size_t bytes) { return ::operator new(bytes, std::align_val_t(256)); }
  static void release(void* p) { ::operator delete(p, std::align_val_t(256)); }
  static void poison(void* p, std::size_t bytes) { std::memset(p, 0xff, bytes); }
  static void write_zeros(Context&, void* p, std::size_t bytes) { std::memset(p, 0, bytes); }
  template <class T>
  static void to_host(Context&, Index n, const T* from, T* to) {
    for (Index i = 0; i < n; ++i) to[i] = from[i];
  }
  template <class T>
  static void from_host(Context& ctx, Index n, const T* from, T* to) {
    to_host(ctx, n, from, to);
  }

  template <class F>
  static void for_each(Context&, Index n, const F& f) {
    for (Index i = 0; i < n; ++i) {
      if constexpr (requires { typename F::Element; }) {
        f(OneElement<typename F::Element>{}, i);
      } else {
        f(i);
      }
    }
  }
  template <class F>
  static void for_tasks(Context& ctx, Index n, const F& f, Index = 0) {
    if (n > 0) f(ctx, Index(0), n);
  }
  template <class F>
  static void for_rows(Context&, Index n, const F& f) {
    for (Index row = 0; row < n; ++row) f(OneLane{}, row);
  }
  template <class T, class F>
  static void reduce(Context&, Index n, const F& f, T* out) {
    T sum = 0;
    for (Index i = 0; i < n; ++i) sum += f(i);
    *out += sum;
  }
  static void group_by(Context&, View<const Index, 1, B> keys, View<Index, 1, B> offsets, View<Index, 1, B> order) {
    Index at = 0;
    for (Index g = 0; g < offsets.size(); ++g) {
      offsets(g) = at;
      for (Index i = 0; g + 1 < offsets.size() && i < keys.size(); ++i)
        if (keys(i) == g) order(at++) = i;
    }
  }
  static void group_table(Context& ctx, View<const Index, 2, B> keys, View<Index, 1, B> offsets,
                          View<Index, 1, B> order, View<Index, 1, B> rows, View<Index, 1, B> row_offsets,
                          View<Index, 1, B> row_slots) {
    group_by_and_back(ctx, keys, offsets, order, rows, row_offsets, row_slots);
  }

  template <class T, class E>
  static void gemm(Context&, View<const T, 2, B> a, bool ta, View<const T, 2, B> b, bool tb, bool accumulate,
                   View<T, 2, B> c, const E& epilogue) {
    for (Index i = 0; i < c.extent(0); ++i)
      for (Index j = 0; j < c.extent(1); ++j) {
        T sum = accumulate ? c(i, j) : T(0);
        for (Index k = 0; k < a.extent(ta ? 0 : 1); ++k) sum += (ta ? a(k, i) : a(i, k)) * (tb ? b(j, k) : b(k, j));
        c(i, j) = epilogue(OneElement<T>{}, Index(0), i, j, sum);
      }
  }
  template <class T, class E, class F>
  static void gemm_rows(Context& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb, View<T, 2, B> c,
                        const E& epilogue, const F& f) {
    gemm_then_rows(ctx, a, b, tb, c, epilogue, f);
  }

  template <class T, class C, class E>
  static void grouped_gemm(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w, bool transpose,
                           View<C, 2, B> c, const E& epilogue) {
    grouped(ctx, g, a, std::array{w}, transpose, c, epilogue);
  }
  template <class T, class F>
  static void grouped_gemm_rows(Context& ctx, Groups<B> g, View<const T, 2, B> a, View<const T, 3, B> w, bool transpose,
                                View<T, 2, B> c, const F& f) {
    grouped_gemm(ctx, g, a, w, transpose, c, functor::Store{});
    for (Index s = g.offsets(0); s < g.offsets(g.experts()); ++s) f(OneLane{}, s, c.data() + s * c.extent(1));
  }
  template <class T, class C, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<B> g, View<const T, 2, B> a,
                           const std::array<View<const T, 3, B>, M>& up, const E& middle, View<const T, 3, B> down,
                           View<C, 2, B> c, const L& last) {
    const auto mark = ctx.mark();
    auto hidden = ctx.template scratch<T>(g.slots, down.extent(1));
    grouped(ctx, g, a, up, false, hidden, middle);
    grouped(ctx, g.in_slot_order(), View<const T, 2, B>(hidden), std::array{down}, false, c, last);
  }
  template <class T>
  static void grouped_outer(Context&, Groups<B> g, View<const T, 2, B> a, View<const T, 2, B> dc, View<T, 3, B> dw,
                            bool accumulate = true, View<const Index, 1, B> dc_rows = {}) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index i = 0; i < dw.extent(1); ++i)
        for (Index j = 0; j < dw.extent(2); ++j) {
          if (!accumulate) dw(e, i, j) = 0;
          for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
            dw(e, i, j) += Operand::of(a(g.row(s), i)) * Operand::of(dc(dc_rows.data() ? dc_rows(s) : s, j));
        }
  }
  template <class T>
  static void grouped_sum(Context&, Groups<B> g, View<const T, 2, B> dc, View<T, 2, B> db, bool accumulate = true,
                          View<const Index, 1, B> dc_rows = {}, In<T, 1, B> weight = {}) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index j = 0; j < db.extent(1); ++j) {
        if (!accumulate) db(e, j) = 0;
        for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
          db(e, j) += (weight.data() ? weight(s) : T(1)) * dc(dc_rows.data() ? dc_rows(s) : s, j);
      }
  }

 private:
  template <class T, class C, std::size_t M, class E>
  static void grouped(Context&, Groups<B> g, View<const T, 2, B> a, const std::array<View<const T, 3, B>, M>& w,
                      bool transpose, View<C, 2, B> c, const E& epilogue) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
        for (Index j = 0; j < c.extent(1); ++j) {
          T sum[M] = {};
          for (std::size_t m = 0; m < M; ++m)
            for (Index k = 0; k < a.extent(1); ++k)
              sum[m] += Operand::of(a(g.row(s), k)) * Operand::of(transpose ? w[m](e, j, k) : w[m](e, k, j));
          if constexpr (M == 1) {
            OneElement<T>{}.store(&c(s, j), epilogue(OneElement<T>{}, e, s, j, sum[0]));
          } else {
            OneElement<T>{}.store(&c(s, j), epilogue(OneElement<T>{}, e, s, j, sum[0], sum[1]));
          }
        }
  }
};

struct AsItIs {
  template <class T>
  static T of(T v) {
    return v;
  }
};
struct Naive : NaivePrimitives<Naive, AsItIs> {};

static_assert(Backend<Naive>);

}  // namespace gatefold::test
