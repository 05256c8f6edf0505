#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gatefold/attention/attend_cache.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/few_rows.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/engine_cases.hpp"

/// Counts the products that read keys and values in place (few_rows.hpp), in whole calls of attention.

using namespace gatefold;
using engine_cases::Choice;

namespace {

constexpr Index most_rows = 8;                            // largest number of rows of a sequence and head for FewRows
constexpr Index widest = 8 * cpu::Register<float>::size;  // largest length of a row of values that is read in place
thread_local int runs_of_few_rows = 0;                    // calls of FewRows::run on this thread
std::atomic<int> products_of_few_rows, other_products, wrong_paths;

/// A Cpu backend that counts the products of attention: those that FewRows computes, and the others.
struct CountedCpu : cpu::Primitives<CountedCpu, AsTheyAre> {
  template <class T, class E>
  static void grouped_gemm_in_place(Context& ctx, Groups<CountedCpu> g, View<const T, 2, CountedCpu> a,
                                    View<const T, 3, CountedCpu> w, bool transpose, View<T, 2, CountedCpu> c,
                                    const E& epilogue) {
    bool few = transpose || c.extent(1) <= widest;
    for (Index e = 0; e < g.experts(); ++e) few = few && g.offsets(e + 1) - g.offsets(e) <= most_rows;
    const int before = runs_of_few_rows;
    Primitives::grouped_gemm_in_place(ctx, g, a, w, transpose, c, epilogue);
    const bool taken = runs_of_few_rows > before;
    ++(taken ? products_of_few_rows : other_products);
    wrong_paths += taken != few;
  }
};

}  // namespace

// Specialises FewRows::run for a context of CountedCpu: counts the call, then computes the products on one thread.
template <>
template <>
void cpu::FewRows<float>::run(CountedCpu::Context&, const cpu::Batch<float>& batch,
                              const cpu::Epilogue<float>& epilogue) {
  ++runs_of_few_rows;
  Cpu::Context one(1);
  run(one, batch, epilogue);
}

namespace {

/// Returns rows [first, first + count) of each sequence.
Tensor<float, 2, CountedCpu> segment(const Tensor<float, 2, CountedCpu>& all, Index length, Index first, Index count) {
  Tensor<float, 2, CountedCpu> rows(all.extent(0) / length * count, all.extent(1));
  for (Index n = 0; n < rows.extent(0); ++n)
    std::copy_n(&all(n / count * length + first + n % count, 0), all.extent(1), &rows(n, 0));
  return rows;
}

}  // namespace

TEST_CASE("attention: FewRows computes only products of few rows") {
  CountedCpu::Context one(1), three(3, true);
  int small = 0, large = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Choice choose(seed);
    CountedCpu::Context& ctx = choose.one_in(2) ? one : three;
    const Index sequences = choose.from(1, 3), kv_heads = choose.from(1, 3), group = choose.from(1, 4),
                heads = kv_heads * group, length = choose.one_in(4) ? choose.from(200, 400) : choose.from(1, 40),
                width = choose.of<4>({choose.from(1, 40), 64, widest, widest + 1}),
                window = choose.one_in(3) ? choose.from(1, 50) : 0;
    const double scale = 1 / std::sqrt(double(width));
    const auto random = [&](Index of_heads) {
      return uniform_tensor<float>(ctx, Seed{std::uint64_t(choose.below(1 << 30))}, 1, sequences * length,
                                   of_heads * width);
    };
    const auto q = random(heads), k = random(kv_heads), v = random(kv_heads);
    KvCache<float, CountedCpu> cache(
        ctx, {.sequences = sequences, .parts = 2 * kv_heads, .width = width, .longest = length, .keep = 0});
    for (Index first = 0, count = 0; first < length; first += count) {
      // The segment has one item of each sequence, as in decoding, a few items, or many items, as in a prompt.
      count = std::min(length - first, choose.one_in(2) ? 1 : choose.one_in(2) ? choose.from(2, 12) : length);
      const Index rows = group * count;
      Tensor<float, 2, CountedCpu> context(sequences * count, heads * width), log_sum_exp(sequences * count, heads);
      products_of_few_rows = other_products = wrong_paths = 0;
      {
        const auto mark = ctx.mark();
        detail_::attending::attend_cached<CountedCpu::Context, float, CountedCpu>(
            ctx, cache.of(count), heads, kv_heads, scale, window, false, segment(q, length, first, count),
            segment(k, length, first, count), segment(v, length, first, count), {}, context, log_sum_exp);
      }
      cache.advance();
      CHECK(wrong_paths == 0);
      const int all = products_of_few_rows + other_products;
      CHECK(all > 0);
      if (rows <= most_rows) {
        ++small;
        // Half of the products compute scores. FewRows computes scores with keys of any width.
        CHECK(products_of_few_rows == (width <= widest ? all : all / 2));
      } else if (window == 0 && rows <= 16) {  // up to 16 rows stay in one block, too many for FewRows
        ++large;
        CHECK(products_of_few_rows == 0);
      }
      Index wrong = 0;
      for (int n = 0; n < 6; ++n) {  // some values, because plain loops are slow
        const Index sequence = choose.below(sequences), t = choose.below(count), h = choose.below(heads),
                    d = choose.below(width), item = sequence * length + first + t,
                    shared = h / group * width;  // first column of the keys and values of the head
        double total = 0, sum = 0;
        for (Index j = window > 0 ? std::max<Index>(0, first + t - window + 1) : 0; j <= first + t; ++j) {
          double score = 0;
          for (Index i = 0; i < width; ++i)
            score += double(q(item, h * width + i)) * double(k(sequence * length + j, shared + i));
          const double weight = std::exp(score * scale);
          total += weight;
          sum += weight * double(v(sequence * length + j, shared + d));
        }
        wrong += !(std::abs(double(context(sequence * count + t, h * width + d)) - sum / total) <= 2e-5);
        wrong += !(std::abs(double(log_sum_exp(sequence * count + t, h)) - std::log(total)) <= 2e-5);
      }
      CHECK(wrong == 0);
    }
  }
  CHECK(small > 250);
  CHECK(large > 25);
}
