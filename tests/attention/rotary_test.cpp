#include "gatefold/attention/rotary.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// The results of ROPE_INIT_FUNCTIONS of transformers 5.24 in float64, for heads of 16 values and rope_theta = 10000.
struct Case {
  std::string name;
  Rotary rotary;
  double amplitude;
  std::vector<double> frequencies;
};
const std::vector<Case> cases{
    {"linear",
     {.rope_type = RopeType::linear, .factor = 4},
     1,
     {0.25, 0.07905694150420949, 0.025, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
      7.905694150420948e-05}},
    {"llama3",
     {.rope_type = RopeType::llama3, .factor = 8, .original_max_position_embeddings = 64},
     1,
     {1.0, 0.24438459943539836, 0.013042256043820465, 0.003952847075210474, 0.00125, 0.00039528470752104737, 0.000125,
      3.952847075210474e-05}},
    {"yarn",
     {.rope_type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 64},
     1.138629436111989,
     {1.0, 0.23717082451262847, 0.05, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
      7.905694150420948e-05}},
    {"yarn without truncation",
     {.rope_type = RopeType::yarn, .factor = 32, .original_max_position_embeddings = 64, .truncate = false},
     1.3465735902799727,
     {1.0, 0.16427061511027596, 0.003893859277068767, 0.0009882117688026185, 0.0003125, 9.882117688026184e-05,
      3.125e-05, 9.882117688026186e-06}},
    {"yarn with mscale",
     {.rope_type = RopeType::yarn,
      .factor = 40,
      .original_max_position_embeddings = 4096,
      .mscale = 0.707,
      .mscale_all_dim = 1},
     0.9210423553163399,
     {1.0, 0.31622776601683794, 0.1, 0.023914724805023366, 0.005125, 0.0008498621211702518, 2.5e-05,
      7.905694150420947e-06}},
};

}  // namespace

TEST_CASE("Rotary (2)-(6): frequencies and amplitude equal values of transformers") {
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(std::abs(c.rotary.amplitude() - c.amplitude) <= 1e-15);
    for (Index i = 0; i < 8; ++i)
      CHECK(std::abs(c.rotary.frequency(i, 16) / c.frequencies[std::size_t(i)] - 1) <= 1e-13);
  }
  const Rotary ntk{.rope_type = RopeType::ntk, .factor = 4};
  for (Index i = 0; i < 8; ++i)
    CHECK(std::abs(ntk.frequency(i, 16) / std::pow(10000 * std::pow(4, 16.0 / 14), -double(i) / 8) - 1) <= 1e-13);
  CHECK(Rotary{.rope_type = RopeType::yarn, .attention_factor = 0.75}.amplitude() == 0.75);
}

TEST_CASE("Rotary (6): equal llama3 factors give a step function") {
  // Llama 4 Scout: pairs that turn less than once in 8192 positions have a sixteenth of their frequency.
  const Rotary scout{.rope_theta = 500000,
                     .rope_type = RopeType::llama3,
                     .factor = 16,
                     .original_max_position_embeddings = 8192,
                     .low_freq_factor = 1,
                     .high_freq_factor = 1};
  Index slow = 0;
  for (Index i = 0; i < 64; ++i) {
    const double plain = std::pow(500000, -double(i) / 64), turns = 8192 * plain / (2 * 3.14159265358979323846);
    slow += turns < 1 ? 1 : 0;
    CHECK(std::abs(scout.frequency(i, 128) / (turns < 1 ? plain / 16 : plain) - 1) <= 1e-13);
  }
  CHECK(slow > 0);
  CHECK(slow < 64);
}

TEST_CASE("Rotary (1): rotates pairs half the rotated width apart") {
  Cpu::Context ctx(2);
  constexpr Index length = 5, heads = 3, width = 10, first = 7;
  const Rotary rotary{.rope_theta = 50,
                      .partial_rotary_factor = 0.6,
                      .rope_type = RopeType::yarn,
                      .factor = 4,
                      .original_max_position_embeddings = 8};
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 2 * length, heads * width);
  Tensor<double, 2, Cpu> y(2 * length, heads * width);
  copy(ctx, x, y.view());
  const auto table = detail_::attending::rotary_table<double>(ctx, rotary, width, first, length);
  detail_::attending::rotate<double>(ctx, rotary, table, width, 0, false, y.view());
  const Index rotated = rotary.rotated(width);
  REQUIRE(rotated == 6);
  std::vector<double> expected;
  for (Index n = 0; n < 2 * length; ++n)
    for (Index h = 0; h < heads; ++h)
      for (Index d = 0; d < width; ++d) {
        const Index pairs = rotated / 2, i = d % pairs, at = h * width;
        const double angle = double(first + n % length) * rotary.frequency(i, rotated), a = rotary.amplitude();
        const double low = x(n, at + i), high = x(n, at + pairs + i);
        expected.push_back(d >= rotated ? x(n, at + d)
                           : d < pairs  ? a * (low * std::cos(angle) - high * std::sin(angle))
                                        : a * (high * std::cos(angle) + low * std::sin(angle)));
      }
  CHECK(difference(values(y), expected) <= 1e-14);

  detail_::attending::rotate<double>(ctx, rotary, table, width, 0, true, y.view());
  std::vector<double> scaled = values(x);  // scaled by the amplitude twice
  for (std::size_t i = 0; i < scaled.size(); ++i)
    if (Index(i) % width < rotated) scaled[i] *= rotary.amplitude() * rotary.amplitude();
  CHECK(difference(values(y), scaled) <= 1e-14);
}

TEST_CASE("Rotary: rotates interleaved pairs in part of each head") {
  Cpu::Context ctx(1);
  constexpr Index items = 4, heads = 2, width = 7, first = 3;
  const Rotary rotary{.rope_theta = 30, .interleaved = true};
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, heads * width);
  Tensor<double, 2, Cpu> y(items, heads * width);
  copy(ctx, x, y.view());
  const auto table = detail_::attending::rotary_table<double>(ctx, rotary, 4, 0, items);
  detail_::attending::rotate<double>(ctx, rotary, table, width, first, false, y.view());
  for (Index n = 0; n < items; ++n)
    for (Index h = 0; h < heads; ++h)
      for (Index d = 0; d < width; ++d) {
        const Index pair = (d - first) / 2, at = h * width;
        const double angle = double(n) * rotary.frequency(pair, 4);
        const Index low = at + first + 2 * pair;
        const double expected = d < first              ? x(n, at + d)
                                : (d - first) % 2 == 0 ? x(n, low) * std::cos(angle) - x(n, low + 1) * std::sin(angle)
                                                       : x(n, low + 1) * std::cos(angle) + x(n, low) * std::sin(angle);
        CHECK(std::abs(y(n, at + d) - expected) <= 1e-15);
      }
}

TEST_CASE("Rotary.validate: names the option that does not fit") {
  const auto message = [](const Rotary& rotary, Index width = 8) {
    return message_of([&] { rotary.validate("X", width); });
  };
  CHECK(message({}) == "no ArgumentError");
  CHECK(message({.rope_theta = 0}) == "X: rotary.rope_theta: expected more than 0, got 0");
  CHECK(message({.partial_rotary_factor = 1.5}) == "X: rotary.partial_rotary_factor: expected 0 to 1, got 1.5");
  CHECK(message({}, 7) ==
        "X: rotary.partial_rotary_factor: expected an even number of rotated values of a head of 7, got 7");
  CHECK(message({.factor = 0.5}) == "X: rotary.factor: expected at least 1, got 0.5");
  CHECK(message({.rope_type = RopeType::yarn}) ==
        "X: rotary.original_max_position_embeddings: expected at least 1, because rope_type is yarn or llama3, got 0");
  Rotary yarn{.rope_type = RopeType::yarn, .original_max_position_embeddings = 9};
  CHECK(message(yarn) == "no ArgumentError");
  for (const double slow : {0.0, 32.0, quiet_nan}) {
    yarn.beta_slow = slow;
    CHECK(message(yarn).starts_with(
        "X: rotary.beta_slow: expected above 0 and less than beta_fast = 32, because rope_type is yarn, got "));
  }
  CHECK(message({.attention_factor = -1}) == "X: rotary.attention_factor: expected at least 0, got -1");
  CHECK(message({.mscale = -1}) == "X: rotary.mscale: expected at least 0, got -1");
  CHECK(message({.mscale_all_dim = -1}) == "X: rotary.mscale_all_dim: expected at least 0, got -1");
  CHECK(message({.rope_type = RopeType::llama3, .original_max_position_embeddings = 9, .low_freq_factor = 5}) ==
        "X: rotary.low_freq_factor: expected at most high_freq_factor = 4, got 5");
}

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
