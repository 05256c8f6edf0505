#include "gatefold/backend/touched_rows.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/not_finite.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::values;

namespace {

constexpr Index kRows = 40, kColumns = 21;  // no register size divides it
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
bool is_touched(Index v) { return v % 7 == 2 || v == 39; }

/// Returns a gradient whose touched rows are random. The other rows hold `untouched`, by default NaN, so that a read of
/// these rows shows.
template <class T>
Table<T, Cpu> gradient(Cpu::Context& ctx, double untouched = kNaN) {
  Table<T, Cpu> g(uniform_tensor<T>(ctx, Seed{3}, 1, kRows, kColumns));
  const auto drawn = values(g);
  zero(ctx, g);
  for (Index v = 0; v < kRows; ++v) {
    g.rows().marks[v] = is_touched(v);
    for (Index d = 0; d < kColumns; ++d)
      g.rows().data[v * kColumns + d] =
          static_cast<T>(is_touched(v) ? drawn[static_cast<std::size_t>(v * kColumns + d)] : untouched);
  }
  return g;
}
template <class T>
Table<T, Cpu> random_table(Cpu::Context& ctx, std::uint64_t seed) {
  return uniform_tensor<T>(ctx, Seed{seed}, 1, kRows, kColumns);
}
template <class T>
bool untouched_are_nan(const Table<T, Cpu>& g) {
  for (Index v = 0; v < kRows; ++v)
    for (Index d = 0; d < kColumns; ++d)
      if (!is_touched(v) && !std::isnan(g(v, d))) return false;
  return true;
}

}  // namespace

TEST_CASE_TEMPLATE("zero: clears touched rows and their marks", T, float, double) {
  for (const int threads : {1, 3}) {
    Cpu::Context ctx(threads, true);
    auto g = gradient<T>(ctx);
    zero(ctx, g);
    for (Index v = 0; v < kRows; ++v) {
      CHECK(!g.rows().touched(v));
      for (Index d = 0; d < kColumns; ++d)
        if (is_touched(v)) CHECK(std::as_const(g)(v, d) == 0);
    }
    CHECK(untouched_are_nan(g));
    g.touch_all();
    set_zero(ctx, g);
    CHECK(values(g) == std::vector<double>(kRows * kColumns, 0));
  }
}

TEST_CASE_TEMPLATE("sum_of_squares and all_finite: read only touched rows", T, float, double) {
  Cpu::Context ctx(2, true);
  const auto sparse = gradient<T>(ctx), with_zeros = gradient<T>(ctx, 0);
  double squares = 0, expected = 0;
  optim::sum_of_squares(ctx, sparse, &squares);
  for (const double v : values(with_zeros)) expected += v * v;
  CHECK(squares == doctest::Approx(expected).epsilon(1e-14));
  CHECK(all_finite(ctx, sparse));
  auto bad = gradient<T>(ctx);
  bad.rows().data[2 * kColumns + kColumns - 1] = std::numeric_limits<T>::infinity();
  CHECK(!all_finite(ctx, bad));
  auto all = gradient<T>(ctx);
  all.touch_all();
  CHECK(!all_finite(ctx, all));
}

TEST_CASE_TEMPLATE("AdamW, Sgd: update only touched rows, like a matrix", T, float, double) {
  const auto check = [](const auto& optimizer) {
    Cpu::Context ctx(2, true);
    auto g = gradient<T>(ctx);
    auto p = random_table<T>(ctx, 5);
    auto state = optimizer.begin(ctx, p);
    for_each_tensor([&](const Name&, auto& t) { fill_uniform(ctx, Seed{6}, 0.1, 1, t); }, state);
    Table<T, Cpu> touched_g = gradient<T>(ctx, 0), touched_p = random_table<T>(ctx, 5);
    touched_g.touch_all();
    auto dense = optimizer.begin(ctx, touched_p);
    copy_pack(ctx, std::as_const(state), dense);
    const auto before_p = values(p), before_state = values(state);
    optimizer.step(ctx, p, g, state);
    optimizer.step(ctx, touched_p, touched_g, dense);
    const auto after_p = values(p), after_state = values(state), dense_p = values(touched_p),
               dense_state = values(dense);
    CHECK(untouched_are_nan(g));
    CHECK(!g.all_touched());
    for (std::size_t i = 0; i < after_state.size(); ++i) {
      const std::size_t at = i % before_p.size();
      const bool touched = is_touched(static_cast<Index>(at) / kColumns);
      CAPTURE(i);
      CHECK(after_state[i] == (touched ? dense_state[i] : before_state[i]));
      CHECK(after_p[at] == (touched ? dense_p[at] : before_p[at]));
    }
    CHECK(after_p != before_p);
    CHECK(dense_p != after_p);  // a dense step applies decay or a moment to rows without a gradient
  };
  check(optim::AdamW{.lr = 0.1, .decay = 0.1});
  check(optim::Sgd{.lr = 0.1, .momentum = 0.9, .decay = 0.1});
  check(optim::Clipped{optim::AdamW{.lr = 0.1}, 0.5});
}

TEST_CASE("NormalizedGd: reads untouched rows as zeros and keeps marks") {
  Cpu::Context ctx(1);
  auto g = gradient<double>(ctx, 0);
  auto p = random_table<double>(ctx, 5);
  const auto before = values(p);
  const optim::NormalizedGd optimizer{.lr = 0.1, .per_expert = false};
  auto state = optimizer.begin(ctx, p);
  optimizer.step(ctx, p, g, state);
  double norm = 0;
  for (const double v : values(g)) norm += v * v;
  norm = std::sqrt(norm);
  const auto gradients = values(g), after = values(p);
  for (std::size_t i = 0; i < after.size(); ++i)
    CHECK(after[i] == doctest::Approx(before[i] - 0.1 * gradients[i] / norm).epsilon(1e-14));
  CHECK(!g.all_touched());
}

TEST_CASE("parts_of: divides tensors and tables into parts, also if empty") {
  Cpu::Context ctx(1);
  const auto tensor = uniform_tensor<float>(ctx, Seed{1}, 1, 5, 2);
  CHECK(parts_of(FlatTensor(tensor), 4).count() == 3);
  CHECK(parts_of(FlatTensor(tensor), 4).elements(2) == 2);
  CHECK(parts_of(FlatTensor(tensor), 4).begin(2) == 8);
  const auto table = gradient<float>(ctx);
  CHECK(parts_of(FlatTensor(table), 4).count() == kRows);
  CHECK(parts_of(FlatTensor(table), 4).elements(2) == kColumns);
  CHECK(parts_of(FlatTensor(table), 4).elements(3) == 0);
  Table<float, Cpu> none;
  CHECK(parts_of(FlatTensor(none), 4).count() == 0);
  none.resize(3, 0);
  zero(ctx, none);
  CHECK(parts_of(FlatTensor(none), 4).count() == 0);
  CHECK(all_finite(ctx, none));
}
