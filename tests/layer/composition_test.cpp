#include "gatefold/layer/composition.hpp"

#include <doctest/doctest.h>

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/recompute.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const OneExpert linear{Linear{.model_dim = 4, .output_dim = 3}};

/// A gate that counts how often a mixture around it calls validate. Its own passes do not call this function.
struct CountedGate : SoftmaxTopK {
  inline static int calls = 0;
  template <class T, class B>
  void validate(const SoftmaxTopK::Params<T, B>& p, Index items, const SoftmaxTopK::Extra<T, B>& extra) const {
    ++calls;
    SoftmaxTopK::validate(p, items, extra);
  }
};

}  // namespace

TEST_CASE("Composition: init gives a single part the whole seed") {
  Cpu::Context ctx(1);
  const auto expected = linear.init<double, Cpu>(ctx, Seed{7});
  const auto params = Recompute{NoResidual{linear}}.init<double, Cpu>(ctx, Seed{7});
  CHECK(same_bits(values(params), values(expected)));
}

TEST_CASE("Composition: init gives part i the seed's fork i") {
  Cpu::Context ctx(1);
  const OneExpert shared{Linear{.model_dim = 4, .output_dim = 3}};
  const auto params = WithShared{linear, shared.expert}.init<double, Cpu>(ctx, Seed{7});
  CHECK(same_bits(values(params.branch), values(linear.init<double, Cpu>(ctx, Seed{7}.fork(0)))));
  CHECK(same_bits(values(params.shared), values(shared.init<double, Cpu>(ctx, Seed{7}.fork(1)))));
}

TEST_CASE("Composition: init checks the options of the composition") {
  Cpu::Context ctx(1);
  const WithShared mixed{linear, Linear{.model_dim = 4, .output_dim = 2}};
  CHECK_THROWS_WITH_AS((mixed.init<double, Cpu>(ctx, Seed{1})),
                       "WithShared: shared.out_dim: expected 3 (from branch.out_dim), got 2", ArgumentError);
}

TEST_CASE("Composition: forward and backward name the composition in errors") {
  Cpu::Context ctx(1);
  const PreNorm branch{LayerNorm{}, linear};
  const auto p = branch.init<double, Cpu>(ctx, Seed{1});
  auto grads = zeros_like(ctx, p);
  Tensor<double, 2, Cpu> x(2, 4), u(2, 4), dx(2, 3);
  Saved<decltype(branch), double, Cpu> saved;
  Nothing<double, Cpu> none;
  const char* const wrong_u = "PreNorm.forward: u: expected [2, 3], got [2, 4]";
  CHECK_THROWS_WITH_AS(branch.forward(ctx, p, x, u, saved), wrong_u, ArgumentError);
  CHECK_THROWS_WITH_AS(branch.infer(ctx, p, x, u), wrong_u, ArgumentError);
  u.resize(2, 3);
  CHECK_THROWS_WITH_AS(branch.backward(ctx, p, x, saved, u, dx, grads, none, none),
                       "PreNorm.backward: dx: expected [2, 4], got [2, 3]", ArgumentError);
}

TEST_CASE("Composition: each pass validates a nested mixture once") {
  Cpu::Context ctx(1);
  const Mixture mixture{CountedGate{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}},
                        Linear{.model_dim = 4, .output_dim = 4}};
  const Stack model{Recompute{Residual{update::Plain{}, PreNorm{LayerNorm{}, mixture}}, false}, 1};
  auto run = pass<double>(ctx, model, 5);
  CountedGate::calls = 0;
  run.forward();
  CHECK(CountedGate::calls == 1);
  run.backward();
  CHECK(CountedGate::calls == 2);
  run.infer();
  CHECK(CountedGate::calls == 3);
}

TEST_CASE("keep_or_scratch: returns the saved tensor or scratch memory") {
  struct Kept {
    Tensor<double, 2, Cpu> h{};
  };
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  Kept kept;
  const auto saved = keep_or_scratch<double, Cpu>(ctx, &kept, &Kept::h, 2, 3);
  CHECK(saved.data() == kept.h.data());
  CHECK(kept.h.extent(0) == 2);
  CHECK(kept.h.extent(1) == 3);
  const auto scratch = keep_or_scratch<double, Cpu>(ctx, nullptr, &Kept::h, 2, 3);
  CHECK(scratch.data() != kept.h.data());
  CHECK(scratch.size() == 6);
  CHECK(part_of(&kept, &Kept::h) == &kept.h);
  CHECK(part_of(nullptr, &Kept::h) == nullptr);
}
