#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <type_traits>

#include "gatefold/core/bfloat16.hpp"
#include "support/larger.hpp"
#include "support/naive_backend.hpp"

/// Plain loops in double that round the same values to bfloat16 as CpuBf16 or CudaBf16 round in float.
namespace gatefold::test {

/// Rounds doubles that stand for floats. The float may have a small rounding error. If it is closer to the border
/// between two bfloat16 than this error, a backend may round it to the other bfloat16. These values are listed, and one
/// of them can be rounded the other way.
class Rounding {
 public:
  /// The largest error of a float, relative to the largest value of its row: 16 roundings. A window that is too small
  /// hides no mistakes: a float that is rounded the other way without being listed is far from the expected value.
  static constexpr double window = 16 * 0x1p-24;

  /// Returns the nearest bfloat16; ties go to the even one.
  /// @param given  true if v can be an input: it then counts as an input, without an error, if a float holds it
  ///         exactly. False for computed values, because a float can also hold a sum of a few short products exactly
  double operator()(double v, double largest, bool given = true) {
    if (v == 0 || !std::isfinite(v)) return v;
    int exponent = 0;
    std::frexp(v, &exponent);
    const double ulp = std::ldexp(1.0, exponent - 8), low = std::floor(v / ulp), rest = v / ulp - low;
    const double nearest = std::nearbyint(v / ulp);
    // If the window is as wide as the steps of bfloat16, v is small next to the largest value of its row. Its rounding
    // then changes results as little as the errors of sums do, so v is not listed.
    given = given && static_cast<double>(static_cast<float>(v)) == v;
    if (!given && std::abs(rest - 0.5) * ulp <= window * largest && ulp > 4 * window * largest) {
      close_.insert(v);
      if (v == other_way_) return (nearest == low ? low + 1 : low) * ulp;
    }
    return nearest * ulp;
  }
  /// Returns the values that were close to a border. Each of them is rounded the same way at every place.
  const std::set<double>& close() const { return close_; }
  void round_the_other_way(double v) { other_way_ = v; }

 private:
  std::set<double> close_;
  double other_way_ = std::numeric_limits<double>::quiet_NaN();
};

template <class B>
class RoundingContext : public NaiveContext<B> {
 public:
  using NaiveContext<B>::NaiveContext;
  Rounding rounding;
};

/// Loads and stores the values of an epilogue. Values that are stored as bfloat16 are rounded after the epilogue.
struct LateStore {
  using Value = double;
  struct Store {
    Bfloat16* to;
    double value;
  };
  Store* stores;
  int* count;

  GATEFOLD_HD double load(const double* p) const { return *p; }
  GATEFOLD_HD double load(const Bfloat16* p) const { return *p; }
  GATEFOLD_HD void store(double* p, double v) const { *p = v; }
  GATEFOLD_HD void store(Bfloat16* p, double v) const { stores[(*count)++] = {p, v}; }
};

/// The primitives of a backend B that rounds the factors of experts' products. They round copies of the factors.
template <class B>
struct RoundingPrimitives : NaivePrimitives<B, AsItIs, RoundingContext<B>> {
  using FullPrecision = NaivePrimitives<B, AsItIs, RoundingContext<B>>;
  using Context = RoundingContext<B>;
  template <class T>
  using Stored = std::conditional_t<std::is_same_v<T, double>, Bfloat16, T>;
  using Matrix = View<const double, 2, B>;
  using Weights = View<const double, 3, B>;

  template <class C, class E>
  static void grouped_gemm(Context& ctx, Groups<B> g, Matrix a, Weights w, bool transpose, View<C, 2, B> c,
                           const E& epilogue) {
    grouped(ctx, g, a, std::array{w}, transpose, c, epilogue);
  }
  template <class F>
  static void grouped_gemm_rows(Context& ctx, Groups<B> g, Matrix a, Weights w, bool transpose, View<double, 2, B> c,
                                const F& f) {
    grouped_gemm(ctx, g, a, w, transpose, c, functor::Store{});
    for (Index s = g.offsets(0); s < g.offsets(g.experts()); ++s) f(OneLane{}, s, c.data() + s * c.extent(1));
  }
  template <class C, std::size_t M, class E, class L>
  static void grouped_pair(Context& ctx, Groups<B> g, Matrix a, const std::array<Weights, M>& up, const E& middle,
                           Weights down, View<C, 2, B> c, const L& last) {
    const auto mark = ctx.mark();
    const auto hidden = ctx.template scratch<double>(g.slots, down.extent(1));
    grouped(ctx, g, a, up, false, hidden, middle);
    grouped(ctx, g.in_slot_order(), Matrix(hidden), std::array{down}, false, c, last);
  }
  static void grouped_outer(Context& ctx, Groups<B> g, Matrix a, Matrix dc, View<double, 3, B> dw,
                            bool accumulate = true, View<const Index, 1, B> dc_rows = {}) {
    const auto mark = ctx.mark();
    FullPrecision::template grouped_outer<double>(
        ctx, g, rounded(ctx, g, a), rounded(ctx, {g.offsets, dc_rows, g.slots}, dc), dw, accumulate, dc_rows);
  }

 private:
  static double largest(const double* row, Index columns) {
    double most = 0;
    for (Index j = 0; j < columns; ++j) most = support::larger(most, std::abs(row[j]));
    return most;
  }
  static void round_row(Context& ctx, const double* from, Index columns, double* to) {
    const double most = largest(from, columns);
    for (Index j = 0; j < columns; ++j) to[j] = ctx.rounding(from[j], most);
  }
  /// Returns a copy of `a` in which the rows of used slots are rounded.
  static Matrix rounded(Context& ctx, const Groups<B>& g, Matrix a) {
    const auto to = ctx.template scratch<double>(a.extent(0), a.extent(1));
    for (Index s = g.offsets(0); s < g.offsets(g.experts()); ++s)
      round_row(ctx, &a(g.row(s), 0), a.extent(1), &to(g.row(s), 0));
    return to;
  }
  static Weights rounded(Context& ctx, Weights w) {
    const auto to = ctx.template scratch<double>(w.extent(0), w.extent(1), w.extent(2));
    for (Index row = 0; row < w.extent(0) * w.extent(1); ++row)
      round_row(ctx, w.data() + row * w.extent(2), w.extent(2), to.data() + row * w.extent(2));
    return to;
  }
  template <class C, std::size_t M, class E>
  static void grouped(Context& ctx, Groups<B> g, Matrix a, const std::array<Weights, M>& w, bool transpose,
                      View<C, 2, B> c, const E& epilogue) {
    const auto mark = ctx.mark();
    const Matrix factors = rounded(ctx, g, a);
    std::array<View<double, 2, B>, M> sums{};
    for (std::size_t m = 0; m < M; ++m) {
      sums[m] = ctx.template scratch<double>(c.extent(0), c.extent(1));
      FullPrecision::template grouped_gemm<double>(ctx, g, factors, rounded(ctx, w[m]), transpose, sums[m],
                                                   functor::Store{});
    }
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s) {
        double most = 0;
        for (const auto& sum : sums) most = std::max(most, largest(&sum(s, 0), c.extent(1)));
        for (Index j = 0; j < c.extent(1); ++j) {
          LateStore::Store stores[5];
          int count = 0;
          const LateStore at{stores, &count};
          if constexpr (M == 1) {
            at.store(&c(s, j), epilogue(at, e, s, j, sums[0](s, j)));
          } else {
            at.store(&c(s, j), epilogue(at, e, s, j, sums[0](s, j), sums[1](s, j)));
          }
          for (int i = 0; i < count; ++i)
            *stores[i].to = Bfloat16::from(static_cast<float>(ctx.rounding(stores[i].value, most, false)));
        }
      }
  }
};

/// Rounds the values that CpuBf16 rounds in float.
struct RoundedDouble : RoundingPrimitives<RoundedDouble> {};
/// Rounds the values that CudaBf16 rounds in float. These include the values that are stored for each slot.
struct RoundedSlots : RoundingPrimitives<RoundedSlots> {
  template <class T>
  using SlotValue = Stored<T>;
};

static_assert(Backend<RoundedDouble> && Backend<RoundedSlots>);

}  // namespace gatefold::test
