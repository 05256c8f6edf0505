#include "gatefold/layer/towers.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE_TEMPLATE("Towers (1): applies one network to each block of columns", T, float, double) {
  Cpu::Context ctx(2);
  for (const Index tasks : {1, 2, 5})
    for (const Index items : {0, 1, 13}) {
      auto p = pass<T>(ctx, Towers{Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}, tasks}, items);
      p.forward();
      std::vector<double> expected;
      for (Index n = 0; n < items; ++n)
        for (Index t = 0; t < tasks; ++t) {
          const naive::Row all = naive::row(p.x, n), block(all.begin() + t * 6, all.begin() + (t + 1) * 6);
          const auto u = naive::mlp(p.params.branch.expert, t, block, naive::gelu);
          expected.insert(expected.end(), u.begin(), u.end());
        }
      CHECK(difference(values(p.y), expected) <= (std::is_same_v<T, double> ? 1e-13 : 1e-6));
    }
}

TEST_CASE("Towers: passes conformance") {
  const auto report = check::conformance<Cpu, double>(
      Towers{Mlp<Gelu>{.model_dim = 3, .hidden_dim = 4}, 2},
      {.items_are_independent = true, .hooks = {{"", {"Params", "Saved", "Extra", "validate", "infer"}}}});
  CHECK_MESSAGE(report, report.str());
  const auto wide = check::conformance<Cpu, double>(Towers{Linear{.model_dim = 3, .output_dim = 2}, 3});
  CHECK_MESSAGE(wide, wide.str());
}

TEST_CASE("Towers: noise reaches the experts") {
  Cpu::Context ctx(1);
  const Towers towers{HiddenDropout{0.5, Mlp<Gelu>{.model_dim = 3, .hidden_dim = 8}}, 2};
  auto p = pass<double>(ctx, towers, 6);
  p.forward();
  const auto without = values(p.y);
  p.extra.random = Random{Seed{3}, 1};
  p.forward();
  CHECK(values(p.y) != without);
  const auto report = check::conformance<Cpu, double>(towers, {}, []<class T>(Element<T>, Index, Index) {
    return Noise{.random = Random{Seed{3}, 1}};
  });
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Towers: wrong options and widths throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] {
          init_params<float, Cpu>(Towers{Linear{.model_dim = 2}, 0}, ctx, Seed{1});
        }) == "Towers: tasks: expected at least 1, got 0");
  auto p = pass<float>(ctx, Towers{Linear{.model_dim = 2}, 3}, 4);
  auto narrow = pass<float>(ctx, Towers{Linear{.model_dim = 2}, 2}, 4);
  CHECK(message_of([&] { p.layer.branch.infer(ctx, p.params.branch, narrow.x, p.y, {}); }) ==
        "Towers.forward: x: expected [?, 6], got [4, 4]");
  CHECK(message_of([&] { p.layer.branch.infer(ctx, narrow.params.branch, p.x, p.y, {}); }) ==
        "Linear: params.weight: expected [3, 2, 2], got [2, 2, 2]");
}
