#include "gatefold/expert/experts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>

#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/experts.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Mixed = Experts<Linear, Mlp<Relu>>;

/// Returns experts of two kinds. mixed(3, 0) has three experts of the first kind, as many as broken_promises uses.
Mixed mixed(Index first, Index second) {
  return {.kinds = {Linear{.model_dim = 4}, Mlp<Relu>{.model_dim = 4, .hidden_dim = 3}}, .counts = {first, second}};
}

/// Two kinds that save something, one expert of the first and two of the second.
using Pair = Experts<Mlp<Relu>, Mlp<Gelu>>;
Pair pair() {
  return {.kinds = {Mlp<Relu>{.model_dim = 4, .hidden_dim = 2}, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}},
          .counts = {1, 2}};
}

}  // namespace

TEST_CASE("Experts (1): the first experts are of the first kind") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    const Index total = static_cast<Index>(counts.size()), first = total / 2;
    Bank<double, Mixed> b(ctx, mixed(first, total - first), counts, 6);
    b.forward();
    const auto& linear = std::get<0>(b.params.kinds);
    const auto& mlp = std::get<1>(b.params.kinds);
    CHECK(linear.weight.extent(0) == first);
    CHECK(mlp.up.extent(0) == total - first);
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
            const Index m = e - first;
            std::vector<double> z;
            for (Index o = 0; o < 4; ++o) {
              double sum = e < first ? linear.bias(e, o) : mlp.down_bias(m, o);
              for (Index d = 0; e < first && d < 4; ++d) sum += x[std::size_t(d)] * linear.weight(e, d, o);
              for (Index j = 0; e >= first && j < 3; ++j) {
                double h = mlp.up_bias(m, j);
                for (Index d = 0; d < 4; ++d) h += x[std::size_t(d)] * mlp.up(m, d, j);
                sum += std::max(h, 0.0) * mlp.down(m, j, o);
              }
              z.push_back(sum);
            }
            return z;
          })) <= 1e-14);
  }
}

TEST_CASE("Experts: unused slots stay untouched; gradients are added") {
  const auto broken = broken_promises<double>(mixed(3, 0), [](auto&) {});
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  // backward of a kind must not read the saved rows of slots of the other kind or of unused slots.
  Cpu::Context ctx(1);
  const Index slots = 9, first = 2, used = 5;
  Bank<double, Pair> clean(ctx, pair(), {2, 0, 3}, 6), b(ctx, pair(), {2, 0, 3}, 6, 4);
  clean.forward();
  clean.backward();
  b.poison(b.dz);
  b.forward();
  CHECK(same_bits(clean.of_slots(clean.z), b.of_slots(b.z)));
  auto& [one, two] = b.saved.kinds;
  fill(ctx, one.pre.view().rows(first, slots - first), quiet_nan);
  fill(ctx, two.pre.view().rows(0, first), quiet_nan);
  fill(ctx, two.pre.view().rows(used, slots - used), quiet_nan);
  b.backward();
  CHECK(same_bits(values(clean.grads), values(b.grads)));
  CHECK(same_bits(clean.of_slots(clean.dslots), b.of_slots(b.dslots)));
  CHECK(b.spare_untouched(b.z));
  CHECK(b.spare_untouched(b.dslots));
}

TEST_CASE("Experts: gradients in a mixture agree; the gate counts experts") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {}, .mixing = {}, .selection = {.k = 2}}, mixed(1, 2)};
  const auto report = check::gradients(ctx, mixture);
  CHECK_MESSAGE(report, report.str());
  const auto p = mixture.init<double, Cpu>(ctx, Seed{1});
  CHECK(p.gate.scores.weight.extent(1) == 3);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.expert);
  CHECK(names == std::vector<std::string>{"kinds.0.weight", "kinds.0.bias", "kinds.1.up", "kinds.1.up_bias",
                                          "kinds.1.down", "kinds.1.down_bias"});
}

TEST_CASE("Experts: deduces the kinds; default is one expert each") {
  const Linear linear{.model_dim = 4};
  const Mlp<Relu> mlp{.model_dim = 4, .hidden_dim = 3};
  const Experts one{std::tuple{linear, mlp}}, counted{std::tuple{linear, mlp}, {2, 6}};
  static_assert(std::is_same_v<decltype(counted), const Mixed>);
  static_assert(std::is_aggregate_v<Mixed>);
  CHECK(one.experts() == 2);
  CHECK(counted.experts() == 8);
}

TEST_CASE("Experts: wrong kinds and counts throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)mixed(2, 5).init<double, Cpu>(ctx, 8, {}); }) ==
        "Experts.init: counts: expected a sum of 8 (the gate's experts), got 7");
  CHECK(message_of([&] { (void)mixed(-1, 2).init<double, Cpu>(ctx, 1, {}); }) ==
        "Experts.init: counts[0]: expected at least 0, got -1");
  const Experts narrow{std::tuple{Linear{.model_dim = 4}, Mlp<Relu>{.model_dim = 5, .hidden_dim = 3}}};
  CHECK(message_of([&] { (void)narrow.init<double, Cpu>(ctx, 2, {}); }) ==
        "Experts.init: kinds[1].in_dim: expected 4 (the in_dim of kinds[0]), got 5");
  const Experts scalar{std::tuple{Linear{.model_dim = 4}, Linear{.model_dim = 4, .output_dim = 1}}};
  CHECK(message_of([&] { (void)scalar.init<double, Cpu>(ctx, 2, {}); }) ==
        "Experts.init: kinds[1].out_dim: expected 4 (the out_dim of kinds[0]), got 1");
  auto p = mixed(1, 2).init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { mixed(1, 2).validate(p, 3); }) == "no ArgumentError");
  CHECK(message_of([&] { mixed(2, 1).validate(p, 3); }) == "Linear: params.weight: expected [2, 4, 4], got [1, 4, 4]");
}
