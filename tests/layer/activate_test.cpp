#include "gatefold/layer/activate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/experts.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("Activate (1): applies the activation to each value") {
  Cpu::Context ctx(2);
  for (const Index dim : {1, 5, 33}) {
    auto gelu = pass<double>(ctx, Activate<Gelu>{.model_dim = dim}, 7);
    auto tanh = pass<double>(ctx, Activate<Tanh>{.model_dim = dim}, 7);  // one value at a time
    gelu.forward();
    tanh.forward();
    std::vector<double> of_gelu, of_tanh;
    for (const double v : values(gelu.x)) of_gelu.push_back(naive::gelu(v));
    for (const double v : values(tanh.x)) of_tanh.push_back(std::tanh(v));
    CHECK(difference(values(gelu.y), of_gelu) <= 1e-14);
    CHECK(difference(values(tanh.y), of_tanh) <= 1e-14);
  }
}

TEST_CASE_TEMPLATE("Activate: gradients and conformance", Act, Identity, Relu, Relu2, Gelu, GeluTanh, Silu, Cubic,
                   ClampedSilu, Tanh) {
  for (const Index dim : {1, 9}) {
    const auto report =
        check::conformance<Cpu, double>(Activate<Act>{.model_dim = dim}, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("Activate: backward adds to dx") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Activate<Relu>{.model_dim = 9}, 3);
  p.forward();
  const auto before = values(p.dx);
  p.backward();
  for (Index i = 0; i < p.x.size(); ++i)
    CHECK(p.dx.data()[i] == before[std::size_t(i)] + (p.x.data()[i] > 0 ? p.dy.data()[i] : 0));
}

TEST_CASE("Activate: runs the update rule's step on its output") {
  Cpu::Context ctx(1);
  const Activate<Silu> branch{.model_dim = 9};
  auto alone = pass<double>(ctx, branch, 3);
  auto stream = pass<double>(ctx, Residual{update::Plain{}, branch}, 3);
  alone.forward();
  stream.forward();
  for (Index i = 0; i < alone.y.size(); ++i) CHECK(stream.y.data()[i] == alone.y.data()[i] + stream.x.data()[i]);
}

TEST_CASE("Activate: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto none = pass<double>(ctx, Activate<Relu>{}, 2);
  CHECK(message_of([&] { none.forward(); }) == "Activate: model_dim: expected at least 1, got 0");
  const Activate<Relu> branch{.model_dim = 3};
  CHECK(branch.with_model_dim(3).model_dim == 3);
  CHECK(message_of([&] { branch.with_model_dim(4); }) ==
        "Activate: model_dim: expected 4 (the width of the layer before), got 3");
  const Nothing<double, Cpu> params;
  Nothing<double, Cpu> saved;
  auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 2, 3);
  Tensor<double, 2, Cpu> narrow(2, 2);
  CHECK(message_of([&] { branch.forward(ctx, params, x, narrow, saved); }) ==
        "Activate.forward: u: expected [2, 3], got [2, 2]");
}
