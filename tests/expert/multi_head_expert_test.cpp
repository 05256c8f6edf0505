#include "gatefold/expert/multi_head_expert.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "support/attention.hpp"
#include "support/experts.hpp"
#include "support/nan_position.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

MultiHeadExpert expert(Index heads, bool causal) {
  return {.model_dim = 6, .heads = heads, .length = 4, .causal = causal, .initial = {.scale = 2}};
}

}  // namespace

TEST_CASE("MultiHeadExpert (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool causal : {false, true})
    for (const Index heads : {1, 3})
      for (const auto& counts : uneven_counts()) {
        Bank<double, MultiHeadExpert> b(ctx, expert(heads, causal), counts, 6);
        b.forward();
        CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
                return naive::multi_head(b.params, e, x, 4, heads, causal);
              })) <= 1e-13);
      }
}

TEST_CASE("MultiHeadExpert: causal: a later position changes no earlier output") {
  Cpu::Context ctx(2);
  Bank<double, MultiHeadExpert> b(ctx, expert(2, true), {3}, 3);
  b.forward();
  const auto before = values(b.z);
  for (Index n = 0; n < 3; ++n)
    for (Index d = 0; d < 6; ++d) b.x(n, 3 * 6 + d) += 1;
  b.forward();
  const auto after = values(b.z);
  Index early = 0, late = 0;
  for (std::size_t i = 0; i < after.size(); ++i) (i % 24 < 18 ? early : late) += before[i] != after[i];
  CHECK(early == 0);
  CHECK(late == 18);
}

TEST_CASE("MultiHeadExpert: unused slots stay untouched; gradients are added") {
  const auto broken = broken_promises<double>(expert(2, false), [](auto& bank) {
    for (auto* t : {&bank.saved.q, &bank.saved.k, &bank.saved.v, &bank.saved.context, &bank.saved.log_sum_exp})
      for (Index i = bank.used() * 4 * t->extent(1); i < t->size(); ++i) t->data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("MultiHeadExpert: NaN reaches no earlier position and no other item") {
  for (const Index heads : {1, 2})
    for (const bool causal : {false, true}) {
      const auto broken = leaks_of_nan<float>(expert(heads, causal), causal);
      CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
    }
}

TEST_CASE("MultiHeadExpert: slots may start anywhere") {
  const auto broken = broken_for_later_slots<double>(expert(2, true));
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("MultiHeadExpert: gradients and conformance of a layer") {
  const auto report =
      check::conformance<Cpu, double>(expert(2, true), {.gradients = {.items = 3}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  const auto full = check::gradients(ctx, expert(3, false), {.items = 2});
  CHECK_MESSAGE(full, full.str());
}

TEST_CASE("MultiHeadExpert: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto message = [&](const MultiHeadExpert& e) {
    return message_of([&] { (void)e.init<double, Cpu>(ctx, 1, {}); });
  };
  CHECK(message({}) == "MultiHeadExpert.init: model_dim: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .length = 0}) == "MultiHeadExpert.init: length: expected at least 1, got 0");
  CHECK(message({.model_dim = 6, .heads = 4}) ==
        "MultiHeadExpert.init: heads: expected a divisor of model_dim = 6, got 4");
  auto p = expert(2, false).init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { expert(2, false).validate(p, 4); }) ==
        "MultiHeadExpert: params.query: expected [4, 6, 6], got [3, 6, 6]");
}
