// Runs the CPU engine on random cases. Each is compared with plain loops in double and with one thread; the test also
// counts which paths the cases took.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/pair_schedule.hpp"
#include "gatefold/backend/cpu/product_schedule.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/engine_cases.hpp"
#include "support/products_of.hpp"
#include "support/slow_build.hpp"
#include "support/words.hpp"

using namespace gatefold;
using namespace gatefold::engine_cases;
using cpu::WeightPath;
using support::factor;

namespace {

#if defined(__OPTIMIZE__) && !defined(GATEFOLD_TESTS_EMULATED)
constexpr bool optimised = true;
#else
constexpr bool optimised = false;
#endif
constexpr std::uint64_t products = support::slow_build ? 8 : optimised ? 150 : 60;
constexpr std::uint64_t pairs = support::slow_build ? 8 : optimised ? 400 : 60;

/// Returns for how many seconds the slow cases run.
double seconds() {
  const char* text = std::getenv("GATEFOLD_DIFFERENTIAL_SECONDS");
  return text ? std::atof(text) : 60;
}
template <class F>
void go_on(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 1'000'000;
       std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds(); ++seed)
    f(seed);
}

/// Blocks: the rows of an expert are not divided, because the tasks are chunks of hidden columns (`none`), or they form
/// one block or several. Rows: a block has one row, at most one tile, some tiles, or so many tiles that every tile
/// prefetches packed weights.
enum class Blocks { none, one, several };
enum class Rows { one, tile, tiles, many };
using Way = std::tuple<WeightPath, Blocks, Rows>;
using Ways = std::map<Way, int>;
/// How often each way was taken by products with transposed weights, by outer products that are stored, and by stored
/// outer products with non-temporal stores (on several threads, and on one thread).
struct MoreWays {
  Ways transposed, stored, streamed, streamed_alone;
};

template <class P>
Rows of_block(Index rows) {
  const Index tiles = divide_up(rows, cpu::Tile<P>::rows);
  return rows == 1 ? Rows::one : tiles <= 1 ? Rows::tile : tiles < 5 ? Rows::tiles : Rows::many;
}
template <class P>
Way way(WeightPath path, Index rows, Index blocks) {
  return {path,
          blocks == 0   ? Blocks::none
          : blocks == 1 ? Blocks::one
                        : Blocks::several,
          of_block<P>(rows / std::max<Index>(blocks, 1))};
}
template <class P>
void count(const cpu::PairBatch<P>& batch, int threads, Ways& ways) {
  const cpu::PairSchedule<P> schedule(batch, threads);
  for (Index e = 0; e < batch.experts; ++e)
    if (const Index rows = batch.rows(e); rows > 0)
      ++ways[way<P>(schedule.path(rows), rows, schedule.row_blocks(rows))];
}
template <class P>
void count(const cpu::Batch<P>& batch, bool stores, int threads, Ways& ways, Ways* streamed = nullptr) {
  const cpu::ProductSchedule<P> schedule(batch, stores, threads);
  for (Index e = 0; e < batch.experts; ++e) {
    const cpu::Problem<P> p = batch[e];
    if (p.rows == 0) continue;
    const Way taken = way<P>(schedule.path(p), p.rows, schedule.row_blocks(p));
    ++ways[taken];
    if (streamed && schedule.streams(p)) ++(*streamed)[taken];
  }
}
/// Checks that each of the given ways was taken at least 10 times. With the matrix unit, two kinds of ways must not be
/// taken: rank updates, and several blocks of rows that each pack the weights.
template <class P>
void expect_each(Ways& ways, std::initializer_list<Way> expected) {
  for (const Way& way : expected) {
    const auto [path, blocks, rows] = way;
    if (cpu::on_amx<P> &&
        (path == WeightPath::rank_update || (path == WeightPath::by_task && blocks == Blocks::several))) {
      CHECK(ways[way] == 0);
      continue;
    }
    CAPTURE(static_cast<int>(std::get<0>(way)));
    CAPTURE(static_cast<int>(std::get<1>(way)));
    CAPTURE(static_cast<int>(std::get<2>(way)));
    CHECK(ways[way] >= 10);
  }
}

/// The backend whose grouped products multiply P.
template <class P>
using BackendOf = std::conditional_t<std::is_same_v<P, Bfloat16>, CpuBf16, Cpu>;
/// Holds j mod 7 for every column j.
template <class T>
const std::vector<T> of_column = [] {
  std::vector<T> x(10'000);
  for (std::size_t j = 0; j < x.size(); ++j) x[j] = T(j % 7);
  return x;
}();
/// An epilogue whose results depend on expert, slot and column, so that a mixed-up one shows.
template <class T>
struct ByPlace {
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    return v + at.load(&of_column<T>.at(std::size_t(j))) + T(e % 3) + T(s % 5);
  }
};
template <class T>
struct Hidden1 {
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    return Relu::value(v + T(e % 3)) + at.load(&of_column<T>.at(std::size_t(j))) / T(8) + T(s % 5) / 8;
  }
};
template <class T>
struct Hidden2 {
  template <class A>
  typename A::Value operator()(const A&, Index, Index s, Index, typename A::Value v, typename A::Value w) const {
    return v * w + T(s % 5) / 8;
  }
};
template <class T>
struct Hidden2With {
  View<const T, 2, Cpu> first;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value w) const {
    return Hidden2<T>{}(at, e, s, j, at.load(&first(s, j)), w);
  }
};

constexpr Index most_weights = 1'000'000;
constexpr std::array<Index, 14> sizes{1, 3, 16, 31, 33, 64, 97, 128, 160, 256, 257, 300, 512, 530};

/// The number of sums over slots in each form: added to previous values or stored, of gathered rows or not, weighted or
/// not.
using Forms = std::map<std::tuple<bool, bool, bool>, int>;

/// Checks one grouped product, one outer product and one sum over slots, with random sizes, skews and threads.
template <class P>
void check_products(std::uint64_t seed, Forms& forms) {
  using T = cpu::SumOf<P>;
  using B = BackendOf<P>;
  CAPTURE(seed);
  Choice choose(seed);
  Index depth = choose.one_in(20) ? 0 : choose.of(sizes), columns = choose.of(sizes);
  const Slots slots(choose, depth * columns > 40'000 ? 150 : 400);
  while (slots.experts() * depth * columns > most_weights) (depth > columns ? depth : columns) /= 2;
  const bool transposed = choose.one_in(3), gathered = choose.one_in(2), stores = choose.one_in(2);
  const bool prepacked = !transposed && choose.one_in(3), half = prepacked && choose.one_in(2);
  const int threads = static_cast<int>(choose.from(2, 8));
  CAPTURE(depth);
  CAPTURE(columns);
  CAPTURE(threads);
  const Index S = slots.count(), E = slots.experts(), in = gathered ? slots.items : S + slots.spare;
  const auto x = choose.numbers<T>(in * depth), dc = choose.numbers<T>((S + slots.spare) * columns),
             dw0 = choose.numbers<T>(E * depth * columns);
  auto w = choose.numbers<T>(E * depth * columns);
  if (half)
    for (T& v : w) v = static_cast<T>(static_cast<float>(Bfloat16::from(static_cast<float>(v))));
  const Groups<B> groups = gathered ? slots.groups<B>() : slots.groups<B>().in_slot_order();
  const View<const T, 2, B> items(x.data(), in, depth), of_slots(dc.data(), S + slots.spare, columns);
  const View<const T, 3, B> weights =
      transposed ? View<const T, 3, B>(w.data(), E, columns, depth) : View<const T, 3, B>(w.data(), E, depth, columns);
  typename B::Context many(threads, true), alone(1);
  cpu::PackedWeights packed;
  if (prepacked)
    packed.add<P>(many, w.data(), E, depth, columns,
                  half && std::is_same_v<T, float> ? Weights::bfloat16 : Weights::unchanged);

  const auto forward = [&](auto& ctx, bool with_packed) {
    Tensor<T, 2, B> c(S + slots.spare, columns);
    const auto run = [&] {
      if (stores)
        B::grouped_gemm(ctx, groups, items, weights, transposed, c.view(), functor::Store{});
      else
        B::grouped_gemm(ctx, groups, items, weights, transposed, c.view(), ByPlace<T>{});
    };
    if (with_packed) {
      const auto scope = ctx.use(packed);
      run();
    } else {
      run();
    }
    return c;
  };
  const Tensor<T, 2, B> c = forward(many, prepacked), one = forward(alone, false);
  CHECK(same_bits(c.data(), one.data(), S * columns));
  if (prepacked) CHECK(same_bits(c.data(), forward(alone, true).data(), S * columns));
  // Compares at most two random slots of every expert with naive sums in double.
  const std::vector<Index> owners = slots.owners();
  for (Index e = 0; e < E; ++e)
    for (Index i = 0; i < std::min<Index>(slots.rows_of(e), 2); ++i) {
      const Index s = slots.offsets[std::size_t(e)] + choose.below(slots.rows_of(e)),
                  r = gathered ? slots.rows[std::size_t(s)] : s;
      Index wrong = 0;
      for (Index j = 0; j < columns; ++j) {
        BoundedSum<T> sum;
        for (Index k = 0; k < depth; ++k)
          sum.add(factor<P>(items(r, k)), factor<P>(transposed ? weights(e, j, k) : weights(e, k, j)));
        if (!stores) {
          sum.add(double(e % 3), 1);
          sum.add(double(s % 5), 1);
          sum.add(double(j % 7), 1);
        }
        wrong += !within(c(s, j), sum.result());
      }
      CHECK(wrong == 0);
    }

  // dw = or += xᵀ dc, and db = or += the sums of dc. The rows of dc may be gathered and weighted.
  const bool accumulate = !choose.one_in(4), weighted = choose.one_in(2);
  std::vector<Index> dc_rows;
  if (choose.one_in(2))
    for (Index s = 0; s < S + slots.spare; ++s) dc_rows.push_back(choose.below(S + slots.spare));
  ++forms[{accumulate, !dc_rows.empty(), weighted}];
  const auto row_of_dc = [&](Index s) { return dc_rows.empty() ? s : dc_rows[std::size_t(s)]; };
  const auto weight = choose.numbers<T>(weighted ? S + slots.spare : 0);
  const auto backward = [&](auto& ctx) {
    std::pair<Tensor<T, 3, B>, Tensor<T, 2, B>> d{Tensor<T, 3, B>(E, depth, columns), Tensor<T, 2, B>(E, columns)};
    std::copy(dw0.begin(), dw0.end(), d.first.data());
    std::fill_n(d.second.data(), E * columns, T(1));
    B::grouped_outer(ctx, groups, items, of_slots, d.first.view(), accumulate, dc_rows);
    B::grouped_sum(ctx, groups, of_slots, d.second.view(), accumulate, dc_rows, weight);
    return d;
  };
  const auto [dw, db] = backward(many);
  const auto [dw_one, db_one] = backward(alone);
  CHECK(same_bits(dw, dw_one));
  CHECK(same_bits(db, db_one));
  Index wrong = 0;
  for (int i = 0; i < 60 && depth > 0; ++i) {
    const Index e = choose.below(E), k = choose.below(depth), j = choose.below(columns);
    BoundedSum<T> sum, column;
    if (accumulate) {
      sum.add(double(dw0[std::size_t((e * depth + k) * columns + j)]), 1);
      column.add(1, 1);
    }
    for (Index s = slots.offsets[std::size_t(e)]; s < slots.offsets[std::size_t(e) + 1]; ++s) {
      const T of_slot = of_slots(row_of_dc(s), j);
      sum.add(factor<P>(items(gathered ? slots.rows[std::size_t(s)] : s, k)), factor<P>(of_slot));
      column.add(double(of_slot), weighted ? double(weight[std::size_t(s)]) : 1);
    }
    wrong += !within(dw(e, k, j), sum.result()) + !within(db(e, j), column.result());
  }
  CHECK(wrong == 0);
}

/// Checks a grouped and an outer product on several threads, with at most 256 KiB of memory for packed operands. The
/// bits must be those of one thread with 16 MiB. In some cases, the weights of the grouped product are packed before
/// the call. An outer product that is stored must have the bits of one that is added to zeros, even if its terms
/// underflow to -0.
template <class P>
void check_waves(std::uint64_t seed, Ways& ways, MoreWays& more) {
  using T = cpu::SumOf<P>;
  using B = BackendOf<P>;
  CAPTURE(seed);
  Choice choose(seed);
  // Small cases have few columns and slightly more slots than a tile has rows, so that blocks have few rows. Some other
  // cases have more slots than one block of the depth.
  const bool small = seed % 4 == 2;
  const Index depth = choose.of(sizes), columns = small ? choose.from(20, 60) : choose.of(sizes),
              budget = choose.from(0, 1 << 18);
  const Slots slots(choose, small ? 16 : seed % 16 < 2 ? 600 : 150);
  if (slots.experts() * depth * columns > most_weights) return;
  const Index S = slots.count(), E = slots.experts();
  const int threads = static_cast<int>(choose.from(2, 8));
  const bool prepacked = small ? seed % 8 == 2 : choose.one_in(3);
  auto x = choose.numbers<T>(slots.items * depth);
  const auto w = choose.numbers<T>(E * depth * columns), dc = choose.numbers<T>(S * columns);
  const bool from_zero = choose.one_in(2), transposed = seed % 4 == 1, gathered = seed % 4 == 3;
  std::vector<Index> order;  // row of dc for each slot, if the outer product gathers rows
  for (Index s = 0; s < S && gathered; ++s) order.push_back(choose.below(S));
  if (choose.one_in(4))  // subnormal, unless products round the numbers first
    for (T& v : x) v *= std::is_same_v<P, Bfloat16> ? T(1e-37) : std::numeric_limits<T>::denorm_min() * 20;
  typename B::Context many(threads, true), alone(1);
  cpu::PackedWeights packed;
  packed.add<P>(many, w.data(), E, depth, columns, Weights::unchanged);
  const auto run = [&](auto& ctx, Index bytes, bool with_packed, bool accumulate) {
    struct {
      Tensor<T, 2, B> c, of_transposed;
      Tensor<T, 3, B> dw;
    } result{Tensor<T, 2, B>(S, columns), Tensor<T, 2, B>(transposed ? S : 0, columns),
             Tensor<T, 3, B>(E, depth, columns)};
    const T begin = from_zero ? T(0) : T(1);
    std::fill_n(result.dw.data(), result.dw.size(), accumulate ? begin : std::numeric_limits<T>::quiet_NaN());
    const functor::Store store;
    cpu::Batch<P> batch{.all = {.a = {x.data(), depth, true, slots.rows.data()},
                                .b = {w.data(), columns, false},
                                .c = result.c.data(),
                                .c_stride = columns,
                                .rows = 0,
                                .columns = columns,
                                .depth = depth,
                                .first = 0},
                        .slots = cpu::Batch<P>::Slots::are_rows,
                        .offsets = slots.offsets.data(),
                        .experts = E,
                        .most_slots = S};
    if (with_packed) batch.all.packed = packed.find<P>(w.data());
    count(batch, true, ctx.threads(), ways);
    cpu::Product<P>::run(ctx, batch, cpu::Epilogue<T>::with(store), bytes);
    batch.all.packed = {};
    if (transposed) {  // the same numbers read as [experts, columns, depth]
      batch.all.b = {w.data(), depth, true};
      batch.all.c = result.of_transposed.data();
      count(batch, true, ctx.threads(), more.transposed);
      cpu::Product<P>::run(ctx, batch, cpu::Epilogue<T>::with(store), bytes);
    }
    batch.all.a.lines_are_rows = false;
    batch.all.b = {dc.data(), columns, false, gathered ? order.data() : nullptr};
    batch.all.c = result.dw.data();
    batch.all.rows = depth;
    batch.slots = cpu::Batch<P>::Slots::are_depth;
    batch.accumulate = accumulate;
    if (accumulate)
      count(batch, true, ctx.threads(), ways);
    else
      count(batch, true, ctx.threads(), more.stored, ctx.threads() > 1 ? &more.streamed : &more.streamed_alone);
    cpu::Product<P>::run(ctx, batch, cpu::Epilogue<T>::with(store), bytes);
    return result;
  };
  const auto result = run(many, budget, prepacked, !from_zero), at_once = run(alone, Index(16) << 20, false, true);
  CHECK(same_bits(result.c, at_once.c));
  CHECK(same_bits(result.of_transposed, at_once.of_transposed));
  CHECK(same_bits(result.dw, at_once.dw));
  if (from_zero) CHECK(same_bits(run(alone, budget, prepacked, false).dw, at_once.dw));
}

/// Checks one plain product, each of whose operands is transposed or not.
template <class T>
void check_plain(std::uint64_t seed) {
  CAPTURE(seed);
  Choice choose(seed);
  const Index rows = choose.one_in(2) ? choose.from(1, 20) : choose.of(sizes), columns = choose.of(sizes);
  const Index depth = choose.one_in(8) ? choose.from(0, 5000) : choose.of(sizes);
  if (rows * columns * depth > 20'000'000) return;
  const bool ta = choose.one_in(2), tb = choose.one_in(2), accumulate = choose.one_in(2);
  const int threads = static_cast<int>(choose.from(2, 8));
  const auto a = choose.numbers<T>(rows * depth), b = choose.numbers<T>(depth * columns),
             c0 = choose.numbers<T>(rows * columns);
  const View<const T, 2, Cpu> left(a.data(), ta ? depth : rows, ta ? rows : depth),
      right(b.data(), tb ? columns : depth, tb ? depth : columns);
  const auto run = [&](int t) {
    Cpu::Context ctx(t, true);
    Tensor<T, 2, Cpu> c(rows, columns);
    std::copy(c0.begin(), c0.end(), c.data());
    Cpu::gemm(ctx, left, ta, right, tb, accumulate, c.view(), functor::Store{});
    return c;
  };
  const auto c = run(threads);
  CHECK(same_bits(c, run(1)));
  Index wrong = 0;
  for (int n = 0; n < 40; ++n) {
    const Index i = choose.below(rows), j = choose.below(columns);
    BoundedSum<T> sum;
    if (accumulate) sum.add(double(c0[std::size_t(i * columns + j)]), 1);
    for (Index k = 0; k < depth; ++k)
      sum.add(double(ta ? left(k, i) : left(i, k)), double(tb ? right(j, k) : right(k, j)));
    wrong += !within(c(i, j), sum.result());
  }
  CHECK(wrong == 0);
}

/// Checks a pair of products against two products one after the other, which check_products compares with loops.
template <class P>
void check_pair(std::uint64_t seed, Ways& ways) {
  using T = cpu::SumOf<P>;
  using B = BackendOf<P>;
  CAPTURE(seed);
  Choice choose(seed);
  const bool small = choose.one_in(3);
  Index depth = choose.one_in(30) ? 0
                : small           ? choose.from(1, 140)
                                  : choose.of(sizes),
        hidden = choose.one_in(30)   ? 0
                 : choose.one_in(12) ? choose.from(600, 2300)
                 : small             ? choose.from(1, 140)
                                     : choose.of(sizes),
        columns = choose.one_in(30) ? 0
                  : small           ? choose.from(1, 140)
                                    : choose.of(sizes);
  const Slots slots(choose, hidden * (depth + columns) > 60'000 ? 120 : 400);
  while (slots.experts() * hidden * (depth + columns) > most_weights) (depth > columns ? depth : columns) /= 2;
  const bool gathered = choose.one_in(2), gated = choose.one_in(3), stores = choose.one_in(2);
  const bool prepacked = choose.one_in(4), half = prepacked && choose.one_in(2);
  const int threads = static_cast<int>(choose.from(2, 8));
  const Index budget = choose.one_in(5) ? choose.from(0, 1 << 18) : Index(16) << 20;
  CAPTURE(depth);
  CAPTURE(hidden);
  CAPTURE(columns);
  CAPTURE(threads);
  const Index S = slots.count(), all = S + slots.spare, E = slots.experts(), in = gathered ? slots.items : all;
  const auto x = choose.numbers<T>(in * depth);
  std::array<std::vector<T>, 3> w{choose.numbers<T>(E * depth * hidden), choose.numbers<T>(E * depth * hidden),
                                  choose.numbers<T>(E * hidden * columns)};
  if (half)
    for (auto& matrix : w)
      for (T& v : matrix) v = static_cast<T>(static_cast<float>(Bfloat16::from(static_cast<float>(v))));
  const Groups<B> groups = gathered ? slots.groups<B>() : slots.groups<B>().in_slot_order();
  const View<const T, 3, B> up(w[0].data(), E, depth, hidden), more(w[1].data(), E, depth, hidden),
      down(w[2].data(), E, hidden, columns);
  const View<const T, 2, B> items(x.data(), in, depth);

  typename B::Context many(threads, true), alone(1);
  Tensor<T, 2, B> first(all, hidden), between(all, hidden), expected(all, columns);
  if (gated) {
    B::grouped_gemm(alone, groups, items, up, false, first.view(), functor::Store{});
    B::grouped_gemm(alone, groups, items, more, false, between.view(), Hidden2With<T>{first});
  } else {
    B::grouped_gemm(alone, groups, items, up, false, between.view(), Hidden1<T>{});
  }
  const Groups<B> in_order = groups.in_slot_order();
  if (stores)
    B::grouped_gemm(alone, in_order, std::as_const(between).view(), down, false, expected.view(), functor::Store{});
  else
    B::grouped_gemm(alone, in_order, std::as_const(between).view(), down, false, expected.view(), ByPlace<T>{});

  cpu::PackedWeights packed;
  if (prepacked)
    for (const auto& [v, r, c] : {std::tuple{&w[0], depth, hidden}, {&w[1], depth, hidden}, {&w[2], hidden, columns}})
      packed.add<P>(many, v->data(), E, r, c,
                    half && std::is_same_v<T, float> ? Weights::bfloat16 : Weights::unchanged);
  for (auto* ctx : {&many, &alone}) {
    Tensor<T, 2, B> c(all, columns);
    cpu::PairBatch<P> batch{.a = {x.data(), depth, true, groups.rows.data()},
                            .ups = gated ? 2 : 1,
                            .down = w[2].data(),
                            .c = c.data(),
                            .depth = depth,
                            .hidden = hidden,
                            .columns = columns,
                            .offsets = slots.offsets.data(),
                            .experts = E,
                            .slots = all};
    for (std::size_t m = 0; m < 2; ++m) {
      batch.up[m] = w[m].data();
      if (prepacked) batch.packed_up[m] = packed.find<P>(w[m].data());
    }
    if (prepacked) batch.packed_down = packed.find<P>(w[2].data());
    count(batch, ctx->threads(), ways);
    const Hidden1<T> hidden1;
    const Hidden2<T> hidden2;
    const functor::Store store;
    const ByPlace<T> by_place;
    const auto of_hidden =
        gated ? cpu::HiddenEpilogue<T>::template with<2>(hidden2) : cpu::HiddenEpilogue<T>::template with<1>(hidden1);
    const auto last = stores ? cpu::Epilogue<T>::with(store) : cpu::Epilogue<T>::with(by_place);
    cpu::ProductPair<P>::run(*ctx, batch, of_hidden, last, budget);
    CHECK(same_bits(c.data(), expected.data(), S * columns));
  }
}

template <class... P>
void check_each(std::uint64_t seed, Forms& forms, Ways& ways, MoreWays& more) {
  const auto check = [&]<class Q>(std::type_identity<Q>) {
    check_products<Q>(seed, forms);
    check_waves<Q>(seed, ways, more);
    if constexpr (!std::is_same_v<Q, Bfloat16>) check_plain<Q>(seed);
    check_pair<Q>(seed, ways);
  };
  (check(std::type_identity<P>{}), ...);
}

}  // namespace

TEST_CASE_TEMPLATE("random products: equal naive sums and bits of one thread", T, GATEFOLD_PRODUCTS_OF) {
  Ways ways;
  MoreWays more;
  Forms forms;
  for (std::uint64_t seed = 1; seed <= products; ++seed) {
    check_products<T>(seed, forms);
    check_waves<T>(2 * seed, ways, more);
    check_waves<T>(2 * seed + 1, ways, more);
    if constexpr (!std::is_same_v<T, Bfloat16>) check_plain<T>(seed);
  }
  if (products < 350) return;
  CHECK(forms.size() == 8);
  for (const auto& form : forms) CHECK(form.second >= 10);
  using W = WeightPath;
  using B = Blocks;
  using R = Rows;
  const R most = cpu::on_amx<T> ? R::tiles : R::many;  // tiles of the matrix unit are larger, so there are fewer
  expect_each<T>(ways, {{W::prepacked, B::one, R::one},
                        {W::prepacked, B::one, R::tile},
                        {W::prepacked, B::one, R::tiles},
                        {W::prepacked, B::one, R::many},
                        {W::prepacked, B::several, R::tile},
                        {W::prepacked, B::several, R::tiles},
                        {W::prepacked, B::several, R::many},
                        {W::rank_update, B::one, R::tile},
                        {W::rank_update, B::one, R::tiles},
                        {W::rank_update, B::one, R::many},
                        {W::rank_update, B::several, R::many},
                        {W::by_call, B::several, most},
                        {W::by_task, B::one, R::one},
                        {W::by_task, B::one, R::tile},
                        {W::by_task, B::one, R::tiles},
                        {W::by_task, B::one, R::many},
                        {W::by_task, B::several, R::tile},
                        {W::by_task, B::several, R::tiles},
                        {W::by_task, B::several, R::many}});
  expect_each<T>(more.transposed, {{W::by_task, B::one, R::one},
                                   {W::by_task, B::one, R::tile},
                                   {W::by_task, B::one, R::tiles},
                                   {W::by_task, B::one, R::many},
                                   {W::by_call, B::several, R::tiles},
                                   {W::by_call, B::several, most}});
  expect_each<T>(more.stored, {{W::rank_update, B::one, R::tile},
                               {W::rank_update, B::one, R::tiles},
                               {W::rank_update, B::one, R::many},
                               {W::rank_update, B::several, R::many},
                               {W::by_call, B::several, R::many},
                               {W::by_task, B::one, R::tile},
                               {W::by_task, B::one, R::tiles},
                               {W::by_task, B::one, R::many},
                               {W::by_task, B::several, R::tiles},
                               {W::by_task, B::several, R::many}});
  if (!cpu::on_amx<T>)
    for (Ways* streamed : {&more.streamed, &more.streamed_alone})
      expect_each<T>(*streamed, {{W::rank_update, B::one, R::tile},
                                 {W::rank_update, B::one, R::tiles},
                                 {W::rank_update, B::one, R::many},
                                 {W::rank_update, B::several, R::many},
                                 {W::by_task, B::one, R::many},
                                 {W::by_task, B::several, R::many},
                                 {W::by_call, B::several, R::many}});
}

TEST_CASE_TEMPLATE("random pairs of products: equal two products, bit for bit", T, GATEFOLD_PRODUCTS_OF) {
  Ways ways;
  for (std::uint64_t seed = 1; seed <= pairs; ++seed) check_pair<T>(seed, ways);
  if (pairs < 1000) return;
  using W = WeightPath;
  using B = Blocks;
  using R = Rows;
  expect_each<T>(ways, {{W::prepacked, B::none, R::one},
                        {W::prepacked, B::none, R::tile},
                        {W::prepacked, B::none, R::tiles},
                        {W::prepacked, B::one, R::tiles},
                        {W::prepacked, B::one, R::many},
                        {W::prepacked, B::several, R::tile},
                        {W::prepacked, B::several, R::tiles},
                        {W::prepacked, B::several, R::many},
                        {W::by_task, B::none, R::one},
                        {W::by_task, B::none, R::tile},
                        {W::by_task, B::none, R::tiles},
                        {W::by_task, B::one, R::tiles},
                        {W::by_task, B::one, R::many},
                        {W::by_task, B::several, R::tile},
                        {W::by_task, B::several, R::tiles},
                        {W::by_task, B::several, R::many}});
  if (cpu::on_amx<T>) expect_each<T>(ways, {{W::by_call, B::several, R::tiles}, {W::by_call, B::several, R::many}});
}

TEST_CASE("random products and pairs: run for GATEFOLD_DIFFERENTIAL_SECONDS" * doctest::skip()) {
  Ways ways;
  MoreWays more;
  Forms forms;
  std::uint64_t last = 0;
  go_on([&](std::uint64_t seed) {
    check_each<GATEFOLD_PRODUCTS_OF>(seed, forms, ways, more);
    last = seed;
  });
  MESSAGE("cases of each kind: ", last - 1'000'000 + 1);
}
