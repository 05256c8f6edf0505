// The grouped products of bfloat16 on tensor cores, against sums in double of what rounding gives.
#include "gatefold/backend/cuda/bf16_product.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

enum class Values { integers, reals };

/// Whole numbers up to 4, whose sums are exact, or numbers in [-1, 1).
std::vector<float> values(Index n, std::uint64_t seed, Values kind) {
  auto v = random_vector<float>(n, seed);
  if (kind == Values::integers)
    for (float& x : v) x = std::round(4 * x);
  return v;
}

/// The nearest number of 8 bits of mantissa, the even one of two: of numbers that are not among the smallest or largest.
double rounded(float x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(x), &exponent);  // in [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// Σ a b and Σ |a b| of what is rounded.
struct Sum {
  double value = 0, magnitude = 0;
  void add(float a, float b) {
    const double product = rounded(a) * rounded(b);
    value += product;
    magnitude += std::abs(product);
  }
  /// A tensor core keeps 24 bits or more of 8 or more products and of the sum before them: three cuts for each 16.
  double bound(Index terms) const { return static_cast<double>(terms / 16 + 1) * 0x1p-22 * magnitude; }
};

/// What is wrong with c, in words.
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
View<const float, Rank, CudaBf16> in(View<const float, Rank, Cuda> v) {
  if constexpr (Rank == 2)
    return {v.data(), v.extent(0), v.extent(1)};
  else
    return {v.data(), v.extent(0), v.extent(1), v.extent(2)};
}

/// c[s] = a[row(s)] op(w[e]) + bias[e], and the sums themselves beside it.
std::string product_differs(OnDevice& on, const ProductCase& c, Values kind) {
  BothGroups groups(on.memory, c);
  auto a_values = values(c.items() * c.depth, 1, kind);
  spoil_unused(a_values, c);
  Both<float> a(on.memory, a_values, c.a_skip),
      w(on.memory, values(c.experts() * c.depth * c.columns, 2, kind), c.w_skip),
      bias(on.memory, values(c.experts() * c.columns, 3, kind));
  const std::size_t size = static_cast<std::size_t>(c.slots() * c.columns);
  Both<float> out(on.memory, std::vector<float>(size, -77)), kept(on.memory, std::vector<float>(size, 0));
  CudaBf16::grouped_gemm(on.ctx, on.groups(groups), in(a.device.in(c.items(), c.depth)),
                         in(weights_view(w.device, c.experts(), c.depth, c.columns, c.transpose)), c.transpose,
                         {out.device.data(), c.slots(), c.columns},
                         BiasAndKeep<float>{bias.device.data(), kept.device.data(), c.columns});
  on.ctx.synchronize();
  const auto got = out.device.values(), sums = kept.device.values();
  Differences differences(kind);
  std::vector<bool> used(static_cast<std::size_t>(c.slots()));
  groups.each_slot([&](Index e, Index s) {
    used[static_cast<std::size_t>(s)] = true;
    for (Index j = 0; j < c.columns; ++j) {
      Sum sum;
      for (Index k = 0; k < c.depth; ++k)
        sum.add(a.host[static_cast<std::size_t>(groups.row(s) * c.depth + k)],
                w.host[static_cast<std::size_t>(c.transpose ? (e * c.columns + j) * c.depth + k
                                                            : (e * c.depth + k) * c.columns + j)]);
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

/// dw[e] (+)= Σ_s a[row(s)]ᵀ dc[s], slots with rows of dc in reverse where `scattered`.
std::string gradient_differs(OnDevice& on, const ProductCase& c, Values kind, bool accumulate, bool scattered) {
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
  CudaBf16::grouped_outer(on.ctx, on.groups(groups), in(a.device.in(c.items(), c.depth)),
                          in(dc.device.in(c.slots(), c.columns)), {dw.device.data(), c.experts(), c.depth, c.columns},
                          accumulate,
                          scattered ? View<const Index, 1, CudaBf16>{dc_rows_on_device.data(), c.slots()}
                                    : View<const Index, 1, CudaBf16>{});
  on.ctx.synchronize();
  const auto got = dw.device.values();
  std::vector<Sum> sums(dw.host.size());
  groups.each_slot([&](Index e, Index s) {
    const Index row = scattered ? dc_rows[static_cast<std::size_t>(s)] : s;
    for (Index i = 0; i < c.depth; ++i)
      for (Index j = 0; j < c.columns; ++j)
        sums[static_cast<std::size_t>((e * c.depth + i) * c.columns + j)].add(
            a.host[static_cast<std::size_t>(groups.row(s) * c.depth + i)],
            dc.host[static_cast<std::size_t>(row * c.columns + j)]);
  });
  Differences differences(kind);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Index count = c.counts[i / static_cast<std::size_t>(c.depth * c.columns)];
    differences.check("dw", static_cast<Index>(i), sums[i], count,
                      sums[i].value + (accumulate ? static_cast<double>(dw.host[i]) : 0), got[i]);
  }
  return differences.text();
}

/// The bits of a product whose rows are those of `counts` slots of each expert, the same first ones in every call.
std::vector<float> rows_of(OnDevice& on, Index count, Index rows, bool transpose) {
  const ProductCase c{.counts = {count, count}, .depth = 200, .columns = 72, .transpose = transpose, .more = 0};
  std::vector<float> a_values;
  for (int e = 0; e < 2; ++e) {
    const auto of_expert = random_vector<float>(count * c.depth, 40 + e);
    a_values.insert(a_values.end(), of_expert.begin(), of_expert.end());
  }
  BothGroups groups(on.memory, c);
  Both<float> a(on.memory, a_values), w(on.memory, random_vector<float>(2 * c.depth * c.columns, 2)),
      out(on.memory, std::vector<float>(static_cast<std::size_t>(c.slots() * c.columns)));
  CudaBf16::grouped_gemm(on.ctx, on.groups(groups), in(a.device.in(c.slots(), c.depth)),
                         in(weights_view(w.device, 2, c.depth, c.columns, transpose)), transpose,
                         {out.device.data(), c.slots(), c.columns}, fn::Store{});
  on.ctx.synchronize();
  const auto all = out.device.values();
  std::vector<float> kept;
  for (int e = 0; e < 2; ++e) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(e * count * c.columns);
    kept.insert(kept.end(), begin, begin + static_cast<std::ptrdiff_t>(rows * c.columns));
  }
  return kept;
}

/// Rows of an expert at the edges of tiles, and experts without any.
const std::vector<Index> kFew = {0, 1, 15, 16, 17, 0, 3}, kSome = {0, 63, 64, 65, 31, 0}, kMany = {129, 0, 127, 300};

}  // namespace

TEST_CASE("cuda: bfloat16 products of every shape of tile, aligned or not, gathered or not, transposed or not") {
  OnDevice on;
  struct Size {
    Index depth, columns;
  };
  for (const auto& [counts, rows] : {std::pair(kFew, 16), std::pair(kSome, 64), std::pair(kMany, 128)})
    for (const Size& size : {Size{64, 128}, Size{200, 72}, Size{1, 1}, Size{13, 150}, Size{66, 9}})
      for (const bool transpose : {false, true})
        for (const bool gather : {false, true})
          for (const Values kind : {Values::integers, Values::reals}) {
            const ProductCase c{.counts = counts,
                                .depth = size.depth,
                                .columns = size.columns,
                                .transpose = transpose,
                                .gather = gather,
                                .a_skip = size.depth % 3,
                                .w_skip = size.depth % 2,
                                .first = 5};
            CAPTURE(c);
            CHECK(device::bf16_tile_rows(c.slots(), c.experts()) == rows);
            CHECK(product_differs(on, c, kind) == "");
          }
}

TEST_CASE("cuda: bfloat16 gradients of weights, added and stored, gathered on either side") {
  OnDevice on;
  for (const auto& [depth, columns] : {std::pair(64, 136), std::pair(5, 3), std::pair(130, 20)})
    for (const bool gather : {false, true})
      for (const bool scattered : {false, true})
        for (const bool accumulate : {false, true})
          for (const Values kind : {Values::integers, Values::reals}) {
            const ProductCase c{.counts = {0, 1, 63, 64, 0, 150},
                                .depth = depth,
                                .columns = columns,
                                .gather = gather,
                                .a_skip = depth % 2,
                                .first = 3};
            CAPTURE(c);
            CAPTURE(scattered);
            CHECK(gradient_differs(on, c, kind, accumulate, scattered) == "");
          }
}

TEST_CASE("cuda: a row of a bfloat16 product has the same bits in any batch, by every shape of tile") {
  OnDevice on;
  for (const bool transpose : {false, true}) {
    const auto few = rows_of(on, 7, 7, transpose);
    CHECK(difference(few, rows_of(on, 40, 7, transpose)) == "");
    CHECK(difference(few, rows_of(on, 200, 7, transpose)) == "");
  }
}

TEST_CASE("cuda: random routings, sizes and layouts of bfloat16 products") {
  OnDevice on;
  std::mt19937 random(7);
  const auto draw = [&](Index least, Index most) {
    return least + static_cast<Index>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int round = 0; round < 25; ++round) {
    ProductCase c{.counts = {}, .depth = draw(1, 150), .columns = draw(1, 150)};
    const Index most = draw(0, 2) == 0 ? 150 : 20;
    for (Index e = draw(1, 40); e > 0; --e) c.counts.push_back(draw(0, 3) == 0 ? 0 : draw(0, most));
    c.transpose = draw(0, 1) == 1;
    c.gather = draw(0, 1) == 1;
    c.first = draw(0, 9);
    CAPTURE(c);
    CHECK(product_differs(on, c, Values::reals) == "");
    CHECK(gradient_differs(on, c, Values::reals, draw(0, 1) == 1, draw(0, 1) == 1) == "");
  }
}
