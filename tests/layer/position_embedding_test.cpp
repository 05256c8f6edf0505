#include "gatefold/layer/position_embedding.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("PositionEmbedding (1), (2): adds the class token and the positions") {
  Cpu::Context ctx(1);
  for (const bool first : {true, false}) {
    CAPTURE(first);
    const Index c = first ? 1 : 0, length = 4 + c;
    auto p = pass<double>(ctx, PositionEmbedding{.tokens = 4, .model_dim = 3, .class_token = first}, 2);
    const auto& params = p.params.branch;
    if (first) fill_uniform(ctx, Seed{7}, -1, 1, p.params.branch.first);
    p.forward();
    CHECK(p.y.extent(1) == length * 3);
    for (Index n = 0; n < 2; ++n)
      for (Index l = 0; l < length; ++l)
        for (Index d = 0; d < 3; ++d)
          CHECK(p.y(n, l * 3 + d) == (l < c ? params.first(0, d) : p.x(n, (l - c) * 3 + d)) + params.place(l, d));
  }
}

TEST_CASE("PositionEmbedding: positions start with deviation 0.02, class token 0") {
  Cpu::Context ctx(1);
  const auto p = PositionEmbedding{.tokens = 99, .model_dim = 100}.init<double, Cpu>(ctx, Seed{1});
  double squares = 0;
  for (Index i = 0; i < p.place.size(); ++i) squares += p.place.data()[i] * p.place.data()[i];
  CHECK(std::sqrt(squares / 10000) == doctest::Approx(0.02).epsilon(0.03));
  for (Index d = 0; d < 100; ++d) CHECK(p.first(0, d) == 0);
}

TEST_CASE("PositionEmbedding: gradients and conformance, with or without token") {
  for (const bool first : {true, false}) {
    const auto report = check::conformance<Cpu, double>(
        PositionEmbedding{.tokens = 3, .model_dim = 5, .class_token = first}, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("PositionEmbedding: runs the update rule's step on its output") {
  Cpu::Context ctx(1);
  const PositionEmbedding branch{.tokens = 3, .model_dim = 4, .class_token = false};
  auto alone = pass<double>(ctx, branch, 3);
  auto stream = pass<double>(ctx, Residual{update::Plain{}, branch}, 3);
  copy_pack(ctx, alone.params.branch, stream.params.branch);
  alone.forward();
  stream.forward();
  for (Index i = 0; i < alone.y.size(); ++i) CHECK(stream.y.data()[i] == alone.y.data()[i] + stream.x.data()[i]);
}

TEST_CASE("PositionEmbedding: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const PositionEmbedding& places) {
    return message_of([&] { (void)places.init<double, Cpu>(ctx, {}); });
  };
  CHECK(says({.model_dim = 3}) == "PositionEmbedding.init: tokens: expected at least 1, got 0");
  CHECK(says({.tokens = 3}) == "PositionEmbedding.init: model_dim: expected at least 1, got 0");
  const auto message = [&](auto&& change) {
    auto p = pass<double>(ctx, PositionEmbedding{.tokens = 4, .model_dim = 3}, 2);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(2, 15); }) == "PositionEmbedding.forward: x: expected [?, 12], got [2, 15]");
  CHECK(message([](auto& p) { p.params.branch.first.resize(0, 3); }) ==
        "PositionEmbedding: params.first: expected [1, 3], got [0, 3]");
  CHECK(message([](auto& p) { p.params.branch.place.resize(4, 3); }) ==
        "PositionEmbedding: params.place: expected [5, 3], got [4, 3]");
}
