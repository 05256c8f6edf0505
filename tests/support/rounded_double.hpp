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

/// Plain loops in double that round to bfloat16 what CpuBf16 or CudaBf16 round of floats.
namespace gatefold::test {

/// Rounding of doubles that stand for floats. Such a float is off by some roundings of its own; where the border
/// between two bfloat16 is closer than that, it may be rounded to the other one of the two. These values are listed,
/// and one of them can be rounded the other way.
class Rounding {
 public:
  /// How far a float may be off, by the largest value of its row: 16 roundings. Too few would hide nothing: a float
  /// that is rounded the other way without being listed is far from what is expected.
  static constexpr double window = 16 * 0x1p-24;

  /// The nearest bfloat16, the even one of two.
  /// @param given  whether v, if it is a float, was given and not computed: a sum of few short products may be one
  double operator()(double v, double largest, bool given = true) {
    if (v == 0 || !std::isfinite(v)) return v;
    int exponent = 0;
    std::frexp(v, &exponent);
    const double ulp = std::ldexp(1.0, exponent - 8), low = std::floor(v / ulp), rest = v / ulp - low;
    const double nearest = std::nearbyint(v / ulp);
    // Where the window is as wide as steps of bfloat16, these are small beside the row: as errors of sums are.
    given = given && static_cast<double>(static_cast<float>(v)) == v;
    if (!given && std::abs(rest - 0.5) * ulp <= window * largest && ulp > 4 * window * largest) {
      close_.insert(v);
      if (v == other_way_) return (nearest == low ? low + 1 : low) * ulp;
    }
    return nearest * ulp;
  }
  /// Values that were close to a border: each is rounded the same way wherever it is read.
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

/// What an epilogue reads and writes: what it stores as bfloat16 is rounded once it is done.
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

/// The primitives of such a backend B: what it multiplies is rounded in a copy.
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
  /// The rows that slots in use read.
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

/// What CpuBf16 rounds of floats,
struct RoundedDouble : RoundingPrimitives<RoundedDouble> {};
/// and what CudaBf16 rounds.
struct RoundedSlots : RoundingPrimitives<RoundedSlots> {
  template <class T>
  using SlotValue = Stored<T>;
};

static_assert(Backend<RoundedDouble> && Backend<RoundedSlots>);

}  // namespace gatefold::test
