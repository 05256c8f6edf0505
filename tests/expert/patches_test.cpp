#include "gatefold/expert/patches.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/initial_values.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("patches: equal separate filters give the results of shared filters") {
  Cpu::Context ctx(2);
  const std::vector<Index> offsets{0, 2, 5}, rows{3, 0, 1, 3, 2};
  const Groups<Cpu> items{offsets, rows, 5};
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3 * 2), dz = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 1);
  auto apart = initial_weights<double>(ctx, Initial{}, Seed{3}, 2, 3, 2, 4);
  repeat_first(ctx, 3, 8, apart.view());
  Tensor<double, 3, Cpu> together(2, 2, 4);
  for (Index e = 0; e < 2; ++e)
    for (Index i = 0; i < 8; ++i) together(e, i / 4, i % 4) = apart(e, 2, i / 4, i % 4);
  const Tensor<double, 2, Cpu> no_bias(2, 0), no_biases(6, 0);
  Tensor<double, 2, Cpu> one(5, 1), other(5, 1), pre, pres, done(5, 6), dother(5, 6), dbias(2, 0), dbiases(6, 0);
  auto dtogether = constant_tensor<double>(ctx, 0, 2, 2, 4), dapart = constant_tensor<double>(ctx, 0, 6, 2, 4);
  patches_forward<Cubic>(ctx, Positions<Cpu>{items, 3, false}, x, together, no_bias, one, pre);
  patches_forward<Cubic>(ctx, Positions<Cpu>{items, 3, true}, x, apart.view().as(6, 2, 4), no_biases, other, pres);
  CHECK(same_bits(values(one), values(other)));
  patches_backward<Cubic>(ctx, Positions<Cpu>{items, 3, false}, x, together, pre, dz, done, dtogether, dbias);
  patches_backward<Cubic>(ctx, Positions<Cpu>{items, 3, true}, x, apart.view().as(6, 2, 4), pres, dz, dother, dapart,
                          dbiases);
  CHECK(same_bits(values(done), values(dother)));
  std::vector<double> summed;
  for (Index e = 0; e < 2; ++e)
    for (Index i = 0; i < 8; ++i) {
      double sum = 0;
      for (Index p = 0; p < 3; ++p) sum += dapart(3 * e + p, i / 4, i % 4);
      summed.push_back(sum);
    }
  CHECK(difference(values(dtogether), summed) <= 1e-14);
}

TEST_CASE("patches: wrong options throw") {
  CHECK(message_of([] { expect_patch_options("Here", 2, 3, 8, 2); }) == "no ArgumentError");
  CHECK(message_of([] { expect_patch_options("Here", 2, 3, 8, 0); }) ==
        "Here: outputs: expected a divisor of filters = 8, got 0");
}
