#include "gatefold/layer/token_mean.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("TokenMean (1): averages one, several or all tokens") {
  Cpu::Context ctx(1);
  for (const Index count : {1, 3, 0}) {
    CAPTURE(count);
    auto p = pass<double>(ctx, TokenMean{.length = 5, .model_dim = 3, .count = count}, 4);
    p.forward();
    for (Index n = 0; n < 4; ++n)
      for (Index d = 0; d < 3; ++d) {
        double sum = 0;
        const Index of = count == 0 ? 5 : count;
        for (Index l = 0; l < of; ++l) sum += p.x(n, l * 3 + d);
        CHECK(p.y(n, d) == doctest::Approx(sum / double(of)).epsilon(1e-15));
      }
  }
}

TEST_CASE("TokenMean: gradients and conformance, with unread tokens") {
  for (const Index count : {1, 0}) {
    const auto report = check::conformance<Cpu, double>(TokenMean{.length = 3, .model_dim = 5, .count = count},
                                                        {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("TokenMean: applies the update rule to the mean") {
  Cpu::Context ctx(1);
  const TokenMean branch{.length = 1, .model_dim = 9};
  auto alone = pass<double>(ctx, branch, 3);
  auto stream = pass<double>(ctx, Residual{update::Plain{}, branch}, 3);
  alone.forward();
  stream.forward();
  for (Index i = 0; i < alone.y.size(); ++i) CHECK(stream.y.data()[i] == alone.y.data()[i] + stream.x.data()[i]);
}

TEST_CASE("TokenMean: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](const TokenMean& mean) {
    auto p = pass<double>(ctx, mean, 2);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return text;
  };
  CHECK(message({.model_dim = 3}) == "TokenMean: length: expected at least 1, got 0");
  CHECK(message({.length = 3}) == "TokenMean: model_dim: expected at least 1, got 0");
  CHECK(message({.length = 3, .model_dim = 2, .count = 4}) == "TokenMean: count: expected 0 to length = 3, got 4");
  CHECK(message({.length = 3, .model_dim = 2, .count = -1}) == "TokenMean: count: expected 0 to length = 3, got -1");
}
