#include "gatefold/attention/attend_cache.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/engine_cases.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using namespace gatefold::detail_::attending;
using engine_cases::Choice;

namespace {

/// A random attention with its inputs for all items of each sequence, and the results of attend_window.hpp, which uses
/// no cache.
template <class T>
struct RandomCase {
  Index sequences, length, kv_heads, group, width, window;
  bool chunked, padding;
  Tensor<T, 2, Cpu> q, k, v, context, log_sum_exp;
  Tensor<T, 1, Cpu> valid;

  RandomCase(Cpu::Context& ctx, Choice& choose)
      : sequences(choose.from(1, 3)),
        length(choose.one_in(3) ? choose.from(200, 420) : choose.from(1, 60)),
        kv_heads(choose.from(1, 3)),
        group(choose.from(1, 5)),
        width(choose.from(1, 20)),
        window(choose.one_in(2) ? 0 : choose.from(1, 128)),
        chunked(window % 2 == 1),
        padding(choose.one_in(3)) {
    if (chunked) window *= 3;  // chunks longer than keys_of_a_chain also occur
    const Index items = sequences * length;
    const auto random = [&](Index columns) {
      return uniform_tensor<T>(ctx, Seed{std::uint64_t(choose.below(1 << 30))}, 2, items, columns);
    };
    q = random(heads() * width);
    k = random(kv_heads * width);
    v = random(kv_heads * width);
    if (choose.one_in(3)) v(choose.below(items), choose.below(v.extent(1))) = std::numeric_limits<T>::quiet_NaN();
    if (choose.one_in(4)) v(choose.below(items), choose.below(v.extent(1))) = std::numeric_limits<T>::infinity();
    valid = Tensor<T, 1, Cpu>(items);
    for (Index n = 0; n < items; ++n) valid(n) = padding && choose.one_in(4) ? T(0) : T(1);
    context = Tensor<T, 2, Cpu>(items, heads() * width);
    log_sum_exp = Tensor<T, 2, Cpu>(items, heads());
    auto mark = ctx.mark();
    const auto repeated = [&](const Tensor<T, 2, Cpu>& kv) {
      const View<T, 2, Cpu> all = ctx.scratch<T>(items, heads() * width);
      for (Index n = 0; n < items; ++n)
        for (Index c = 0; c < all.extent(1); ++c) all(n, c) = kv(n, c / width / group * width + c % width);
      return View<const T, 2, Cpu>(all);
    };
    const WindowForm<T, Cpu> form{.window = last_keys(length, 0, window, chunked),
                                  .heads = heads(),
                                  .scale = scale(),
                                  .valid = padding ? valid.view() : View<const T, 1, Cpu>{}};
    forward(ctx, form, q.view(), repeated(k), repeated(v), context.view(), log_sum_exp.view(), View<T, 2, Cpu>{});
  }
  Index heads() const { return kv_heads * group; }
  double scale() const { return 1 / std::sqrt(double(width)); }
};
/// Returns true if all elements have the same bits. NaN equals NaN, because no rule gives the sign of a NaN.
template <class T>
bool same_numbers(const Tensor<T, 2, Cpu>& a, const Tensor<T, 2, Cpu>& b) {
  for (Index i = 0; i < a.size(); ++i)
    if (!(std::isnan(a.data()[i]) && std::isnan(b.data()[i])) &&
        !engine_cases::same_bits(a.data() + i, b.data() + i, 1))
      return false;
  return a.size() == b.size();
}
/// Returns rows [first, first + count) of each sequence.
template <class T>
Tensor<T, 2, Cpu> part(const Tensor<T, 2, Cpu>& all, Index length, Index first, Index count) {
  Tensor<T, 2, Cpu> rows(all.extent(0) / length * count, all.extent(1));
  for (Index n = 0; n < rows.extent(0); ++n)
    for (Index c = 0; c < rows.extent(1); ++c) rows(n, c) = all(n / count * length + first + n % count, c);
  return rows;
}

}  // namespace

TEST_CASE_TEMPLATE("attend_cached: random segments give the bits of attend_window", T, float, double) {
  Cpu::Context one(1), two(2);
  Index several = 0, single = 0, split = 0;  // blocks with the query rows of several matrices, of one, of part of one
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Choice choose(seed);
    Cpu::Context& ctx = seed % 2 == 0 ? one : two;
    const RandomCase<T> c(ctx, choose);
    const Index largest = choose.one_in(3) ? c.length : choose.from(1, 9);
    KvCache<T, Cpu> cache(ctx, {.sequences = c.sequences,
                                .parts = 2 * c.kv_heads,
                                .width = c.width,
                                .longest = c.length + (choose.one_in(2) ? 0 : choose.from(0, 500)),
                                .keep = c.window > 1 && choose.one_in(2) ? c.window - 1 : 0});
    Index different = 0;
    for (Index first = 0; first < c.length;) {
      const Index count = std::min(choose.from(1, largest), c.length - first);
      const auto q = part(c.q, c.length, first, count), k = part(c.k, c.length, first, count),
                 v = part(c.v, c.length, first, count), expected = part(c.context, c.length, first, count),
                 expected_lse = part(c.log_sum_exp, c.length, first, count);
      Tensor<T, 1, Cpu> valid(q.extent(0));
      for (Index n = 0; n < q.extent(0); ++n) valid(n) = c.valid(n / count * c.length + first + n % count);
      Tensor<T, 2, Cpu> context(q.extent(0), q.extent(1)), log_sum_exp(q.extent(0), c.heads());
      const auto view = cache.of(count);
      auto mark = ctx.mark();
      attend_cached<Cpu::Context, T, Cpu>(ctx, view, c.heads(), c.kv_heads, c.scale(), c.window, c.chunked, q, k, v,
                                          c.padding ? valid.view() : View<const T, 1, Cpu>{}, context, log_sum_exp);
      const Index past = view.first + view.items;
      const CachedHeads of{c.heads(), c.kv_heads, view.capacity, last_keys(count, past, c.window, c.chunked, first)};
      for_each_cache_block(of, 0, c.sequences * c.kv_heads, [&](const detail_::attending::Block& b) {
        (b.sequences > 1 ? several : b.rows == of.rows() ? single : split) += 1;
      });
      cache.advance();
      different += same_numbers(context, expected) && same_numbers(log_sum_exp, expected_lse) ? 0 : 1;
      first += count;
    }
    CHECK(different == 0);
  }
  CHECK(several > 40);
  CHECK(single > 40);
  CHECK(split > 40);
}

TEST_CASE("for_each_cache_block: every row has all keys of its window") {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    Choice choose(seed);
    const Index past = choose.one_in(2) ? 0 : choose.from(0, 3000), length = choose.one_in(3) ? choose.from(1, 700) : 1,
                capacity = past + length + (choose.one_in(2) ? 0 : choose.from(0, 4000)),
                width = choose.one_in(2) ? 0 : choose.from(1, 500), kv_heads = choose.from(1, 4);
    const bool chunked = width > 0 && choose.one_in(2);
    const CachedHeads of{kv_heads * choose.from(1, 6), kv_heads, capacity,
                         last_keys(length, past, width, chunked, past + choose.from(0, 100))};
    const Index matrices = kv_heads * choose.from(1, 3), first = choose.below(matrices);
    std::vector<int> seen(std::size_t(matrices * of.rows()), 0);
    Index wrong = 0, largest = 0;
    for_each_cache_block(of, first, matrices - first, [&](const detail_::attending::Block& b) {
      largest = std::max(largest, b.all_rows() * b.keys);
      for (Index r = 0; r < b.all_rows(); ++r) {
        const Index row = b.row + r, matrix = row / of.rows(), t = row % length;
        ++seen[std::size_t(row)];
        const Index begin = b.first_key(r) - matrix * capacity, end = begin + b.keys;
        wrong += begin >= 0 && begin <= std::max<Index>(0, of.window.first(t)) && end <= capacity ? 0 : 1;
        wrong += end > past + t ? 0 : 1;
        if (chunked && past + length > keys_of_a_chain)  // then a sum must begin at the chunk's first key
          wrong += begin == std::max<Index>(0, of.window.first(t)) ? 0 : 1;
      }
    });
    for (Index row = 0; row < Index(seen.size()); ++row)
      wrong += seen[std::size_t(row)] == (row >= first * of.rows() ? 1 : 0) ? 0 : 1;
    CHECK(wrong == 0);
    CHECK(largest <= std::max<Index>(128 * 512, 16 * (past + length)));  // scores fit in a limited scratch memory
  }
}

TEST_CASE("for_each_cache_block: a long sum begins with its chunk's first key") {
  Index several_chunks = 0;
  for (const Index past : {0, 100, 200, 230, 255, 400})
    for (const Index length : {1, 5, 30, 60, 100})
      for (const Index width : {7, 50, 235, 260, 300, 420})
        for (const Index group : {1, 3}) {
          CAPTURE(past);
          CAPTURE(length);
          CAPTURE(width);
          const CachedHeads of{2 * group, 2, past + length + 10, last_keys(length, past, width, true, past)};
          Index wrong = 0;
          for_each_cache_block(of, 0, 4, [&](const detail_::attending::Block& b) {
            for (Index r = 0; r < b.all_rows(); ++r) {
              const Index t = (b.row + r) % length, begin = b.first_key(r) - (b.row + r) / of.rows() * of.capacity;
              several_chunks += of.window.first(t) > 0 ? 1 : 0;
              if (past + length > keys_of_a_chain) wrong += begin != of.window.first(t) ? 1 : 0;
            }
          });
          CHECK(wrong == 0);
        }
  CHECK(several_chunks > 100);
}
