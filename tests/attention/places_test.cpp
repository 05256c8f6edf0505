#include "gatefold/attention/places.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using detail_::attending::Block;
using detail_::attending::Window;

namespace {

/// The rows of a block with their scores and the scores of their places.
struct Scored {
  Cpu::Context ctx{2};
  Window window{.length = 5, .past = 2, .width = 4};
  Block block{.row = 5, .rows = 5, .key = 7, .keys = 7, .sequences = 2};  // the second and third sequence
  std::vector<double> keys = std::vector<double>(21, 1.0);
  Tensor<double, 2, Cpu> queries = uniform_tensor<double>(ctx, Seed{1}, 1, 15, 3);
  Tensor<double, 2, Cpu> places = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  Tensor<double, 2, Cpu> score = uniform_tensor<double>(ctx, Seed{3}, 1, 10, 7);

  /// Calls f(row of the block, column, place) for every key that a row sees.
  template <class F>
  void for_each_seen(const F& f) const {
    for (Index row = 0; row < 10; ++row)
      for (Index o = 0; o < window.width; ++o) {
        const Index j = window.past + row % 5 - (window.itself ? window.width - 1 : window.width) + o;
        if (j >= 0) f(row, j, o);
      }
  }
};

}  // namespace

TEST_CASE("positions (1): visible keys get their position's score") {
  for (const bool itself : {true, false}) {
    Scored s;
    s.window.itself = itself;
    s.keys[7 + 3] = -infinity;  // padding
    s.keys[14 + 4] = quiet_nan;
    auto expected = values(s.score);
    s.for_each_seen([&](Index row, Index j, Index o) {
      double& v = expected[std::size_t(row * 7 + j)];
      const double key = s.keys[std::size_t(7 + row / 5 * 7 + j)];
      for (Index d = 0; d < 3; ++d) v += s.queries(5 + row, d) * s.places(o, d);
      if (!(key > 0)) v = key;
    });
    auto mark = s.ctx.mark();
    const auto position =
        detail_::attending::position_scores<Cpu::Context, double, Cpu>(s.ctx, s.block, s.queries, s.places);
    Cpu::for_rows(s.ctx, 10, functor::WindowScores<double, Cpu>{s.window, s.block, s.keys, position, s.score, {}});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double v = s.score.data()[i];
      if (std::isfinite(expected[i]))
        CHECK(std::abs(v - expected[i]) <= 1e-14);
      else
        CHECK((std::isnan(expected[i]) ? std::isnan(v) : v == expected[i]));
    }
  }
}

TEST_CASE("positions: gradients of scores reach positions and queries") {
  Scored s;
  Tensor<double, 2, Cpu> dqueries = constant_tensor<double>(s.ctx, 1, 15, 3), expected(10, 4);
  fill(s.ctx, expected.view(), 0);
  s.for_each_seen([&](Index row, Index j, Index o) { expected(row, o) = s.score(row, j); });
  auto mark = s.ctx.mark();
  const auto dposition = detail_::attending::position_scores_backward<Cpu::Context, double, Cpu>(
      s.ctx, s.block, s.window, {}, s.score, s.places, dqueries);
  for (Index i = 0; i < expected.size(); ++i) CHECK(dposition.data()[i] == expected.data()[i]);
  for (Index n = 0; n < 15; ++n)
    for (Index d = 0; d < 3; ++d) {
      double v = 1;
      for (Index o = 0; o < 4 && n >= 5; ++o) v += expected(n - 5, o) * s.places(o, d);
      CHECK(std::abs(dqueries(n, d) - v) <= 1e-14);
    }
  CHECK(detail_::attending::position_scores<Cpu::Context, double, Cpu>(s.ctx, s.block, s.queries, {}).empty());
}
