#include "gatefold/layer/rounded_weights.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/train/not_finite.hpp"
#include "gatefold/update/plain.hpp"
#include "support/keeping.hpp"

using namespace gatefold;
using support::Keeping;

namespace {

const Stack model{Residual{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}},
                                                    Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}}},
                  2};
constexpr Index banks = 4;

struct Case {
  Keeping::Context ctx{1};
  Params<decltype(model), float, Keeping> params = init_params<float, Keeping>(model, ctx, Seed{1});
  RoundedWeights<Keeping> rounded;

  Case() {
    rounded.refresh(ctx, params);
    Keeping::rounded = 0;
  }
  auto& up() { return params.layers[1].branch.expert.up; }
};

}  // namespace

TEST_CASE("RoundedWeights: copies are current until weights are accessed mutably") {
  const auto after = [](auto&& f) {
    Case c;
    CHECK(c.rounded.current(c.params));
    f(c);
    const bool current = c.rounded.current(c.params);
    c.rounded.refresh(c.ctx, c.params);
    CHECK(c.rounded.current(c.params));
    CHECK(c.rounded.packed.size() == banks);
    return current;
  };
  CHECK(after([](Case&) {}));
  CHECK(after([](Case& c) { CHECK(std::as_const(c.up())(0, 1, 2) != 0); }));
  CHECK(after([](Case& c) { c.params.layers[1].branch.expert.up_bias(0, 1) = 3; }));  // biases are not copied
  CHECK(!after([](Case& c) { c.up()(0, 1, 2) = 3; }));
  CHECK(!after([](Case& c) { c.up().data(); }));
  CHECK(after([](Case& c) { CHECK(count_values(c.params) > 0); }));
  CHECK(after([](Case& c) { CHECK(all_finite(c.ctx, std::as_const(c.params))); }));
  CHECK(!after([](Case& c) { set_zero(c.ctx, c.params); }));
  CHECK(!after([](Case& c) {
    set_zero_later(c.ctx, c.up());
    c.up().take_zeros();  // the zeros are never written
  }));
  CHECK(!after([](Case& c) { c.up().resize(3, 6, 5); }));
  CHECK(!after([](Case& c) {
    const auto others = init_params<float, Keeping>(model, c.ctx, Seed{2});
    copy_pack(c.ctx, others, c.params);
  }));
  CHECK(!after([](Case& c) { c.params = init_params<float, Keeping>(model, c.ctx, Seed{2}); }));
  CHECK(!after([](Case& c) {
    RoundedWeights<Keeping> other;  // holds nothing yet
    CHECK(!other.current(c.params));
    other.refresh(c.ctx, c.params);
    CHECK(other.current(c.params));
  }));
}

TEST_CASE("RoundedWeights: swapped copies keep their own state") {
  Case c;
  c.up()(0, 1, 2) = 3;
  RoundedWeights<Keeping> later;
  later.refresh(c.ctx, c.params);
  std::swap(c.rounded, later);
  CHECK(c.rounded.current(c.params));
  CHECK(!later.current(c.params));
  later = std::move(c.rounded);
  CHECK(later.current(c.params));
}

TEST_CASE("RoundedWeights: refresh drops copies of weights that were swapped") {
  Case c;
  auto others = init_params<float, Keeping>(model, c.ctx, Seed{2});
  std::swap(c.params, others);
  const float* const before = std::as_const(others.layers[1].branch.expert.up).data();
  c.rounded.refresh(c.ctx, c.params);
  CHECK(c.rounded.packed.size() == banks);
  CHECK(!c.rounded.packed.find(before, 5));
  CHECK(c.rounded.packed.find(std::as_const(c.up()).data(), 5));
  CHECK(!c.rounded.packed.find(std::as_const(c.up()).data(), 6));
  CHECK(c.rounded.current(c.params));
}

TEST_CASE("RoundedWeights: run refreshes outdated copies, or all if written") {
  Case c;
  Index runs = 0;
  const auto run = [&](bool keep, bool written) {
    Keeping::rounded = 0;
    c.rounded.run(c.ctx, c.params, {.keep = keep, .written = written}, [&] { ++runs; });
    return Keeping::rounded;
  };
  CHECK(run(true, false) == 0);
  CHECK(run(true, true) == banks);
  c.up().data();
  CHECK(run(true, false) == banks);
  CHECK(run(true, false) == 0);
  CHECK(run(false, true) == 0);
  CHECK(c.rounded.packed.size() == 0);
  CHECK(run(true, false) == banks);
  CHECK(runs == 6);
}

TEST_CASE("RoundedWeights: other backends and double keep no copies") {
  CHECK(!RoundedWeights<Cpu>::exist);
  CHECK(!RoundedWeights<CpuBf16>::exist);
  CpuBf16::Context ctx(1);
  const auto params = init_params<float, CpuBf16>(model, ctx, Seed{1});
  RoundedWeights<CpuBf16> rounded;
  rounded.refresh(ctx, params);
  CHECK(rounded.current(params));
  Index runs = 0;
  rounded.run(ctx, params, {}, [&] { ++runs; });
  CHECK(runs == 1);

  Keeping::Context other(1);
  const auto doubles = init_params<double, Keeping>(model, other, Seed{1});
  RoundedWeights<Keeping> of_doubles;
  of_doubles.refresh(other, doubles);
  CHECK(of_doubles.packed.size() == 0);
  CHECK(of_doubles.current(doubles));
}
