#include "gatefold/expert/zero_computation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/experts.hpp"
#include "support/larger.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("ZeroExpert (1), CopyExpert (2): write zeros, or copies of items") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, ZeroExpert> zero(ctx, {.model_dim = 5}, counts, 6);
    Bank<double, CopyExpert> copy(ctx, {.model_dim = 5}, counts, 6);
    zero.forward();
    copy.forward();
    CHECK(zero.of_slots(zero.z) == std::vector<double>(std::size_t(zero.used() * 5), 0));
    CHECK(copy.of_slots(copy.z) == copy.expected([](Index, const std::vector<double>& x) { return x; }));
    zero.backward();
    copy.backward();
    CHECK(zero.of_slots(zero.dslots) == std::vector<double>(std::size_t(zero.used() * 5), 0));
    CHECK(copy.of_slots(copy.dslots) == copy.of_slots(copy.dz));
  }
}

TEST_CASE("ConstantExpert (3): mixes the item and its expert's constant") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts())
    for (const Index dim : {1, 5, 33}) {
      Bank<double, ConstantExpert> b(ctx, {.model_dim = dim}, counts, 6);
      b.forward();
      CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
              double score[2] = {};
              for (Index k = 0; k < 2; ++k)
                for (Index d = 0; d < dim; ++d) score[k] += x[std::size_t(d)] * b.params.weight(e, k, d);
              const double sum = std::exp(score[0]) + std::exp(score[1]);
              std::vector<double> z;
              for (Index d = 0; d < dim; ++d)
                z.push_back(std::exp(score[0]) / sum * x[std::size_t(d)] +
                            std::exp(score[1]) / sum * b.params.constant(e, d));
              return z;
            })) <= 1e-14);
    }
}

TEST_CASE("zero-computation experts: conformance, also mixed with GatedMlp") {
  const auto copy = check::conformance<Cpu, double>(CopyExpert{.model_dim = 5}, {.items_are_independent = true});
  CHECK_MESSAGE(copy, copy.str());
  for (const Index dim : {1, 9}) {
    const auto constant =
        check::conformance<Cpu, double>(ConstantExpert{.model_dim = dim}, {.items_are_independent = true});
    CHECK_MESSAGE(constant, constant.str());
  }
  const Experts experts{std::tuple{GatedMlp<Silu>{5, 9}, ZeroExpert{5}, CopyExpert{5}, ConstantExpert{5}},
                        {2, 1, 1, 2}};
  const auto mixed = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.selection = {.k = 2, .renormalise = false}}, experts}, {.items_are_independent = true});
  CHECK_MESSAGE(mixed, mixed.str());
}

TEST_CASE_TEMPLATE("zero-computation experts: write only used slots, which start anywhere", E, ZeroExpert, CopyExpert,
                   ConstantExpert) {
  const auto broken = broken_promises<double>(E{.model_dim = 5}, [](auto& bank) {
    if constexpr (requires { bank.saved.share; })
      for (Index i = bank.used(); i < bank.saved.share.size(); ++i) bank.saved.share(i) = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  const auto later = broken_for_later_slots<double>(E{.model_dim = 5});
  CHECK_MESSAGE(later.empty(), (later.empty() ? "" : later[0]));
}

TEST_CASE("ConstantExpert: starts as constants N(0, 1) and weights U(±1/√D)") {
  Cpu::Context ctx(1);
  const auto p = ConstantExpert{.model_dim = 16}.init<double, Cpu>(ctx, 100, Seed{4});
  double most = 0, sum = 0, squares = 0;
  for (const double v : values(p.weight)) most = support::larger(most, std::abs(v));
  CHECK(most <= 0.25);
  CHECK(most > 0.249);
  for (const double v : values(p.constant)) sum += v, squares += v * v;
  CHECK(std::abs(sum / 1600) < 0.1);
  CHECK(std::abs(squares / 1600 - 1) < 0.15);
}

TEST_CASE("zero-computation experts: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)ZeroExpert{}.init<float, Cpu>(ctx, 1, {}); }) ==
        "ZeroExpert.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)CopyExpert{}.init<float, Cpu>(ctx, 1, {}); }) ==
        "CopyExpert.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)ConstantExpert{}.init<float, Cpu>(ctx, 1, {}); }) ==
        "ConstantExpert.init: model_dim: expected at least 1, got 0");
  const ConstantExpert expert{.model_dim = 4};
  auto p = expert.init<float, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { expert.validate(p, 2); }) ==
        "ConstantExpert: params.weight: expected [2, 2, 4], got [3, 2, 4]");
  p.constant.resize(3, 5);
  CHECK(message_of([&] { expert.validate(p, 3); }) == "ConstantExpert: params.constant: expected [3, 4], got [3, 5]");
}
