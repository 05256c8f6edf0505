#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "gatefold/gatefold.hpp"
#include "gatefold/io/elements.hpp"
#include "support/pass.hpp"

// Compiled with -ffast-math. A step with NaN or infinity must still be refused and write nothing.
#if !defined(__FINITE_MATH_ONLY__) || !__FINITE_MATH_ONLY__
#error "this test says something only when it is compiled with -ffast-math"
#endif

using namespace gatefold;
using support::same_bits;
using support::values;

namespace {

/// Returns NaN or an infinity of which the compiler sees only the bits.
float strange(std::uint32_t magnitude) {
  volatile std::uint32_t bits = magnitude;
  const std::uint32_t copy = bits;
  float value;
  __builtin_memcpy(&value, &copy, sizeof value);
  return value;
}
template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const NotFiniteError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("fast math: a non-finite loss or gradient skips the step") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Mlp<Gelu>{5, 7}};
  const auto check = [&](const auto& optimizer) {
    for (const std::uint32_t magnitude : {0x7fc00000u, 0x7f800000u, 0xff800000u})
      for (const bool in_target : {false, true}) {
        Trainer trainer{ctx, Residual{update::Plain{}, mixture}, MeanSquaredError{}, optimizer, Seed{1}};
        auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 8, 5), target = uniform_tensor<float>(ctx, Seed{3}, 1, 8, 5);
        trainer.step(x, target);
        const auto params = values(trainer.params), state = values(trainer.state);
        (in_target ? target : x)(3, 2) = strange(magnitude);
        CHECK(message_of([&] { trainer.step(x, target); }).find("Trainer.step: loss: expected a finite number") == 0);
        CHECK(same_bits(values(trainer.params), params));
        CHECK(same_bits(values(trainer.state), state));
        CHECK(trainer.state.step == 1);
        trainer.not_finite = NotFinite::skips;
        trainer.step(x, target);
        CHECK(trainer.skipped == 1);
        CHECK(same_bits(values(trainer.params), params));
      }
  };
  check(optim::AdamW{});
  check(optim::Clipped{optim::Sgd{.momentum = 0.9}, 1.0});
  // all_finite detects a single NaN or infinity in the parameters.
  Trainer trainer{ctx, Residual{update::Plain{}, mixture}, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  CHECK(all_finite(ctx, trainer.params));
  trainer.params.branch.expert.up(1, 2, 3) = strange(0x7fc00000u);
  CHECK_FALSE(all_finite(ctx, trainer.params));
  trainer.params.branch.expert.up(1, 2, 3) = strange(0xff800000u);
  CHECK_FALSE(all_finite(ctx, trainer.params));
}

TEST_CASE("fast math: accuracy counts a NaN logit as wrong") {
  Cpu::Context ctx(1);
  Tensor<float, 2, Cpu> y(3, 3);
  Tensor<Index, 1, Cpu> labels(3);
  for (Index n = 0; n < 3; ++n)
    for (Index c = 0; c < 3; ++c) y(n, c) = n == c ? 1 : 0;
  for (Index n = 0; n < 3; ++n) labels(n) = n;
  CHECK(metric::accuracy(ctx, y.view(), labels) == 1);
  y(0, 0) = strange(0x7fc00000u);
  y(1, 2) = strange(0xffc00000u);
  CHECK(metric::accuracy(ctx, y.view(), labels) == 1.0 / 3);
  y(2, 1) = strange(0xff800000u);  // -inf
  CHECK(metric::accuracy(ctx, y.view(), labels) == 1.0 / 3);
}
TEST_CASE("fast math: NaN stays NaN in files of fewer bits") {
  double nan;
  const std::uint64_t bits = 0x7ff8000000000000u;
  __builtin_memcpy(&nan, &bits, sizeof nan);
  volatile double hidden = nan;
  CHECK(functor::is_nan(io::safetensors::rounded_to_odd(hidden)));
}
