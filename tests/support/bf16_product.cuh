#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "support/grouped_product.cuh"

/// Compares grouped products of floats rounded to bfloat16 with sums in double of the rounded values.
namespace gatefold::test {

enum class Values { integers, reals };

/// Returns whole numbers from -4 to 4, whose sums are exact, or numbers in [-1, 1).
inline std::vector<float> values(Index n, std::uint64_t seed, Values kind) {
  auto v = random_vector<float>(n, seed);
  if (kind == Values::integers)
    for (float& x : v) x = std::round(4 * x);
  return v;
}

/// Rounds x to the nearest number with 8 bits of mantissa. A tie is rounded to the even mantissa. x must not be so
/// small that its bfloat16 is subnormal, or so large that its bfloat16 is infinite.
inline double rounded(float x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(x), &exponent);  // in [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

inline std::vector<double> rounded(const std::vector<float>& v) {
  std::vector<double> to;
  for (const float x : v) to.push_back(std::isnan(x) ? std::nan("") : rounded(x));
  return to;
}

/// Σ a b and Σ |a b|.
struct Sum {
  double value = 0, magnitude = 0;
  // These tests are compiled with -O0 and spend most of their time in this function, so it is inlined even then.
  [[gnu::always_inline]] void add(double a, double b) {
    const double product = a * b;
    value += product;
    magnitude += product < 0 ? -product : product;
  }
  void add(const Sum& other) {
    value += other.value;
    magnitude += other.magnitude;
  }
  /// Returns a bound of the rounding error. A tensor core adds 8 or more products to a sum at a time, and keeps at
  /// least 24 bits of each product and of the sum. This makes at most three truncations for each 16 terms.
  double bound(Index terms) const { return static_cast<double>(terms / 16 + 1) * 0x1p-22 * magnitude; }
};

/// Returns row `row` of a times column j of the weights w of expert e.
inline Sum row_by_column(const ProductCase& c, Index row, const std::vector<double>& a, Index e, Index j,
                         const std::vector<double>& w) {
  const double* x = a.data() + row * c.depth;
  const double* y = w.data() + (c.transpose ? (e * c.columns + j) * c.depth : e * c.depth * c.columns + j);
  const Index step = c.transpose ? 1 : c.columns;
  Sum sum;
  for (Index k = 0; k < c.depth; ++k) sum.add(x[k], y[k * step]);
  return sum;
}

/// Compares results with expected values, and keeps a text about the first difference.
class Differences {
 public:
  explicit Differences(Values kind) : exact_(kind == Values::integers) {}
  void check(const char* what, Index at, const Sum& sum, Index terms, double expected, double got) {
    if (!text_.empty()) return;
    if (exact_ ? got == expected : std::abs(got - expected) <= sum.bound(terms) + 0x1p-23 * std::abs(expected)) return;
    std::ostringstream message;
    message.precision(17);
    message << what << " [" << at << "]: expected " << expected << ", got " << got;
    text_ = message.str();
  }
  const std::string& text() const { return text_; }

 private:
  bool exact_;
  std::string text_;
};

struct OnDevice {
  Cuda::Context memory;
  CudaBf16::Context ctx;

  Groups<CudaBf16> groups(BothGroups& both) {
    const auto g = both.on_device();
    return {{g.offsets.data(), g.offsets.size()}, {g.rows.data(), g.rows.size()}, g.slots};
  }
};
template <int Rank>
View<const float, Rank, CudaBf16> of_bf16(View<const float, Rank, Cuda> v) {
  if constexpr (Rank == 2)
    return {v.data(), v.extent(0), v.extent(1)};
  else
    return {v.data(), v.extent(0), v.extent(1), v.extent(2)};
}

/// Checks c[s] = a[row(s)] op(w[e]) + bias[e], and the sums without bias, which the epilogue also stores.
inline std::string product_differs(OnDevice& on, const ProductCase& c, Values kind) {
  BothGroups groups(on.memory, c);
  auto a_values = values(c.items() * c.depth, 1, kind);
  spoil_unused(a_values, c);
  Both<float> a(on.memory, a_values, c.a_skip),
      w(on.memory, values(c.experts() * c.depth * c.columns, 2, kind), c.w_skip),
      bias(on.memory, values(c.experts() * c.columns, 3, kind));
  const std::size_t size = static_cast<std::size_t>(c.slots() * c.columns);
  Both<float> out(on.memory, std::vector<float>(size, -77)), kept(on.memory, std::vector<float>(size, 0));
  CudaBf16::grouped_gemm(on.ctx, on.groups(groups), of_bf16(a.device.in(c.items(), c.depth)),
                         of_bf16(weights_view(w.device, c.experts(), c.depth, c.columns, c.transpose)), c.transpose,
                         {out.device.data(), c.slots(), c.columns},
                         BiasAndKeep<float>{bias.device.data(), kept.device.data(), c.columns});
  on.ctx.synchronize();
  const auto got = out.device.values(), sums = kept.device.values();
  const auto of_a = rounded(a.host), of_w = rounded(w.host);
  Differences differences(kind);
  std::vector<bool> used(static_cast<std::size_t>(c.slots()));
  groups.each_slot([&](Index e, Index s) {
    used[static_cast<std::size_t>(s)] = true;
    for (Index j = 0; j < c.columns; ++j) {
      const Sum sum = row_by_column(c, groups.row(s), of_a, e, j, of_w);
      const auto at = static_cast<std::size_t>(s * c.columns + j);
      const double b = bias.host[static_cast<std::size_t>(e * c.columns + j)];
      differences.check("sum", static_cast<Index>(at), sum, c.depth, sum.value, sums[at]);
      differences.check("c", static_cast<Index>(at), sum, c.depth, sum.value + b, got[at]);
    }
  });
  for (Index s = 0; s < c.slots(); ++s)
    for (Index j = 0; j < c.columns && !used[static_cast<std::size_t>(s)]; ++j)
      if (got[static_cast<std::size_t>(s * c.columns + j)] != -77) return "a slot of nobody was written";
  return differences.text();
}

/// Checks c[s] = a[row(s)] op(w[e]) + b[row(s)] op(v[e]), for a and b that are stored as bfloat16.
inline std::string sum_of_products_differs(OnDevice& on, const ProductCase& c, Values kind) {
  BothGroups groups(on.memory, c);
  const auto numbers = [&](Index n, std::uint64_t seed) { return values(n, seed, kind); };
  const auto of_rows = [&](std::uint64_t seed) {
    std::vector<Bfloat16> to;
    auto v = numbers(c.items() * c.depth, seed);
    spoil_unused(v, c);
    for (const float x : v) to.push_back(Bfloat16::from(x));
    return to;
  };
  Both<Bfloat16> a(on.memory, of_rows(1)), b(on.memory, of_rows(2));
  Both<float> w(on.memory, numbers(c.experts() * c.depth * c.columns, 3)),
      v(on.memory, numbers(c.experts() * c.depth * c.columns, 4)),
      out(on.memory, std::vector<float>(static_cast<std::size_t>(c.slots() * c.columns), -77));
  const auto rows = [&](Both<Bfloat16>& m) {
    return View<const Bfloat16, 2, CudaBf16>{m.device.data(), c.items(), c.depth};
  };
  const auto weights = [&](Both<float>& m) {
    return of_bf16(weights_view(m.device, c.experts(), c.depth, c.columns, c.transpose));
  };
  CudaBf16::grouped_gemms(on.ctx, on.groups(groups), std::array{rows(a), rows(b)}, std::array{weights(w), weights(v)},
                          c.transpose, View<float, 2, CudaBf16>{out.device.data(), c.slots(), c.columns});
  on.ctx.synchronize();
  const auto got = out.device.values();
  const auto as_doubles = [](const std::vector<Bfloat16>& m) {
    std::vector<double> to;
    for (const Bfloat16 x : m) to.push_back(static_cast<double>(float(x)));
    return to;
  };
  const auto of_a = as_doubles(a.host), of_b = as_doubles(b.host), of_w = rounded(w.host), of_v = rounded(v.host);
  Differences differences(kind);
  std::vector<bool> used(got.size());
  groups.each_slot([&](Index e, Index s) {
    for (Index j = 0; j < c.columns; ++j) {
      Sum sum = row_by_column(c, groups.row(s), of_a, e, j, of_w);
      sum.add(row_by_column(c, groups.row(s), of_b, e, j, of_v));
      const auto at = static_cast<std::size_t>(s * c.columns + j);
      used[at] = true;
      differences.check("c", static_cast<Index>(at), sum, 2 * (c.depth + 16), sum.value, got[at]);
    }
  });
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!used[i] && got[i] != -77) return "a slot of nobody was written";
  return differences.text();
}

/// Returns epilogue(c) = factor[e, j] c for column j, and stores c as well.
struct KeepAndMultiply {
  const float* factor;
  float* kept;
  Index columns;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    at.store(kept + s * columns + j, v);
    return v * at.load(factor + e * columns + j);
  }
};
struct StoreSum {
  float* to;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s, float sum) const {
    if (lanes.lane == 0) to[s] = sum;
  }
};

/// Checks sums over the columns of a product that is not stored. The epilogue stores the product's elements for the
/// check.
inline std::string column_sums_differ(OnDevice& on, const ProductCase& c, Values kind) {
  BothGroups groups(on.memory, c);
  auto a_values = values(c.items() * c.depth, 1, kind);
  spoil_unused(a_values, c);
  Both<float> a(on.memory, a_values, c.a_skip),
      w(on.memory, values(c.experts() * c.depth * c.columns, 2, kind), c.w_skip),
      factor(on.memory, values(c.experts() * c.columns, 3, kind)),
      kept(on.memory, std::vector<float>(static_cast<std::size_t>(c.slots() * c.columns), -77)),
      sums(on.memory, std::vector<float>(static_cast<std::size_t>(c.slots()), -77));
  CudaBf16::grouped_gemm_sum(on.ctx, on.groups(groups), of_bf16(a.device.in(c.items(), c.depth)),
                             of_bf16(weights_view(w.device, c.experts(), c.depth, c.columns, c.transpose)), c.transpose,
                             c.columns, KeepAndMultiply{factor.device.data(), kept.device.data(), c.columns},
                             StoreSum{sums.device.data()});
  on.ctx.synchronize();
  const auto got = sums.device.values(), elements = kept.device.values();
  const auto of_a = rounded(a.host), of_w = rounded(w.host);
  Differences differences(kind);
  std::vector<bool> used(static_cast<std::size_t>(c.slots()));
  groups.each_slot([&](Index e, Index s) {
    used[static_cast<std::size_t>(s)] = true;
    Sum total;
    for (Index j = 0; j < c.columns; ++j) {
      const Sum sum = row_by_column(c, groups.row(s), of_a, e, j, of_w);
      const auto at = static_cast<std::size_t>(s * c.columns + j);
      differences.check("element", static_cast<Index>(at), sum, c.depth, sum.value, elements[at]);
      total.add(static_cast<double>(elements[at]),
                static_cast<double>(factor.host[static_cast<std::size_t>(e * c.columns + j)]));
    }
    differences.check("sum", s, total, c.columns, total.value, got[static_cast<std::size_t>(s)]);
  });
  for (std::size_t s = 0; s < used.size(); ++s)
    if (!used[s] && got[s] != -77) return "a slot of nobody was written";
  return differences.text();
}

/// Checks dw[e] (+)= Σ_s a[row(s)]ᵀ dc[s]. If `scattered` is true, the slots read the rows of dc in reverse order.
inline std::string gradient_differs(OnDevice& on, const ProductCase& c, Values kind, bool accumulate, bool scattered) {
  BothGroups groups(on.memory, c);
  auto a_values = values(c.items() * c.depth, 1, kind), dc_values = values(c.slots() * c.columns, 2, kind);
  spoil_unused(a_values, c);
  if (!scattered) {
    std::fill_n(dc_values.begin(), c.first * c.columns, std::nan(""));
    std::fill(dc_values.end() - c.more * c.columns, dc_values.end(), std::nan(""));
  }
  std::vector<Index> dc_rows;
  for (Index s = 0; scattered && s < c.slots(); ++s) dc_rows.push_back(c.slots() - 1 - s);
  DeviceArray<Index> dc_rows_on_device(on.memory, dc_rows);
  Both<float> a(on.memory, a_values, c.a_skip), dc(on.memory, dc_values, c.w_skip),
      dw(on.memory, values(c.experts() * c.depth * c.columns, 3, kind));
  CudaBf16::grouped_outer(on.ctx, on.groups(groups), of_bf16(a.device.in(c.items(), c.depth)),
                          of_bf16(dc.device.in(c.slots(), c.columns)),
                          {dw.device.data(), c.experts(), c.depth, c.columns}, accumulate,
                          scattered ? View<const Index, 1, CudaBf16>{dc_rows_on_device.data(), c.slots()}
                                    : View<const Index, 1, CudaBf16>{});
  on.ctx.synchronize();
  const auto got = dw.device.values();
  const auto of_a = rounded(a.host), of_dc = rounded(dc.host);
  std::vector<Sum> sums(dw.host.size());
  groups.each_slot([&](Index e, Index s) {
    const Index row = scattered ? dc_rows[static_cast<std::size_t>(s)] : s;
    for (Index i = 0; i < c.depth; ++i)
      for (Index j = 0; j < c.columns; ++j)
        sums[static_cast<std::size_t>((e * c.depth + i) * c.columns + j)].add(
            of_a[static_cast<std::size_t>(groups.row(s) * c.depth + i)],
            of_dc[static_cast<std::size_t>(row * c.columns + j)]);
  });
  Differences differences(kind);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Index count = c.counts[i / static_cast<std::size_t>(c.depth * c.columns)];
    differences.check("dw", static_cast<Index>(i), sums[i], count,
                      sums[i].value + (accumulate ? static_cast<double>(dw.host[i]) : 0), got[i]);
  }
  return differences.text();
}

}  // namespace gatefold::test
