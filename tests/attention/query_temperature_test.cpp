#include "gatefold/attention/query_temperature.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("QueryTemperature (1): the factor grows in steps") {
  const QueryTemperature t{.floor_scale = 4, .attn_scale = 0.5};
  for (const Index position : {0, 1, 2}) CHECK(t.factor(position) == 1);
  for (const Index position : {3, 4, 5, 6})
    CHECK(t.factor(position) == doctest::Approx(1 + 0.5 * std::log(2.0)).epsilon(1e-15));
  CHECK(t.factor(7) == doctest::Approx(1 + 0.5 * std::log(3.0)).epsilon(1e-15));
  CHECK(t.factor(4'000'000'003) == doctest::Approx(1 + 0.5 * std::log(1'000'000'002.0)).epsilon(1e-15));
  CHECK(QueryTemperature{}.factor(100'000) == 1);
  CHECK(QueryTemperature{.floor_scale = 8192}.factor(8191) == doctest::Approx(1 + 0.1 * std::log(2.0)).epsilon(1e-15));
}

TEST_CASE_TEMPLATE("QueryTemperature (1): scales the rows of every sequence", T, float, double) {
  Cpu::Context ctx(2);
  const QueryTemperature t{.floor_scale = 3, .attn_scale = -0.2};
  constexpr Index length = 5, position = 7, width = 6;
  const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, 2 * length, width);
  Tensor<T, 2, Cpu> q(2 * length, width);
  copy(ctx, x.view(), q.view());
  detail_::attending::scale_by_position(ctx, t, position, length, q.view());
  for (Index n = 0; n < 2 * length; ++n)
    for (Index j = 0; j < width; ++j) CHECK(q(n, j) == x(n, j) * static_cast<T>(t.factor(position + n % length)));
  copy(ctx, x.view(), q.view());
  detail_::attending::scale_by_position(ctx, QueryTemperature{}, position, length, q.view());
  CHECK(same_bits(values(q), values(x)));
}

TEST_CASE("QueryTemperature: wrong options are refused") {
  const auto refused = [](const QueryTemperature& t) { return message_of([&] { t.validate("Attention"); }); };
  CHECK(refused({.floor_scale = 8192}) == "no ArgumentError");
  CHECK(refused({.floor_scale = -1}) == "Attention: temperature.floor_scale: expected at least 0, got -1");
  CHECK(refused({.attn_scale = infinity}) == "Attention: temperature.attn_scale: expected a finite number, got inf");
}
