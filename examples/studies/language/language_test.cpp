#include <doctest/doctest.h>

#include <unistd.h>

#include <cmath>
#include <complex>
#include <filesystem>
#include <fstream>
#include <gatefold/gatefold.hpp>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "../../training/one_of.hpp"
#include "learn.hpp"
#include "tables.hpp"

using namespace studies::lm;
using namespace gatefold;

namespace {

using EitherRule = training::OneOf<update::SharpnessAware, update::LearnedHeavyBall>;

/// Returns the outputs of forward and infer of two layers, and all gradients of backward, as one list.
template <class RuleT>
std::vector<double> passes(const RuleT& rule) {
  Cpu::Context ctx(1);
  const Stack stack{Residual{rule, OneExpert{Linear{3, 3}}}, 2};
  using StackT = std::remove_const_t<decltype(stack)>;
  auto params = init_params<double, Cpu>(stack, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  Tensor<double, 2, Cpu> x(2, 3), y(2, 3), inferred(2, 3), dx(2, 3);
  for (Index i = 0; i < 6; ++i) x.data()[i] = 0.3 * static_cast<double>(i) - 1;
  fill(ctx, dx.view(), 0);
  Carry<StackT, double, Cpu> carry;
  Saved<StackT, double, Cpu> saved;
  stack.begin(ctx, params, 2, carry);
  stack.forward(ctx, params, x, carry, y, saved);
  set_zero(ctx, carry);
  backward(stack, ctx, params, x.view(), saved, x, carry, dx.view(), grads);
  stack.begin(ctx, params, 2, carry);
  infer(stack, ctx, params, x.view(), carry, inferred);
  std::vector<double> all;
  const auto add = [&](const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); };
  for (const auto* t : {&y, &inferred, &dx}) add(*t);
  for_each_tensor([&](const auto&, const auto& t) { add(t); }, grads);
  return all;
}

}  // namespace

TEST_CASE("OneOf: has the same bits as the rule it holds") {
  const update::SharpnessAware twice{.rho = 0.2};
  const update::LearnedHeavyBall learned{.mu = 0.4, .step = update::StepSize::per_item};
  CHECK(passes(EitherRule{twice}) == passes(twice));
  CHECK(passes(EitherRule{learned}) == passes(learned));
  CHECK(passes(twice) != passes(learned));
}

TEST_CASE("fluctuation: counts words whose experts change, ignoring order") {
  CHECK(fluctuation({1, 2, 3, 4, 5, 6, 7, 8}, {2, 1, 3, 4, 5, 7, 7, 8}, 2) == 0.25);
  CHECK(fluctuation({1, 2}, {2, 1}, 1) == 1);
}

TEST_CASE("settles: agrees with the stability interval of lemma 1") {
  // For the eigenvalue σ of −∂u/∂x, the plain sum is stable if 0 < σ < 2, heavy ball with μ = 0.7 if 0 < σ < 3.4.
  const std::vector<std::complex<double>> sigma{-1, 1, 2.5, 3};
  CHECK(settles(sigma, 0)["stable"] == 0.25);
  CHECK(settles(sigma, 0.7)["stable"] == 0.75);
  CHECK(settles({{0.5, 0}}, 0)["radius"].get<double>() == doctest::Approx(0.5).epsilon(1e-13));  // λ = 1 − σ
}

namespace {

/// A model that predicts the last word again with probability 1/2. All other words are equally probable.
class Echo final : public Model {
 public:
  void step(const Ids&, const Ids&) override {}
  std::vector<double> surprises(const Ids& x, const Ids& next) override {
    std::vector<double> all;
    for (std::size_t n = 0; n < x.size(); ++n) all.push_back(x[n] == next[n] ? std::log(2) : std::log(8));
    return all;
  }
  std::vector<Routing> routing(const Ids&) override { return {}; }
  Index parameters() const override { return 0; }
  Index skipped() const override { return 0; }
};

}  // namespace

TEST_CASE("perplexities: equal results by hand; harm skips attacked words") {
  Setting s;
  s.batch = 1;
  s.length = 2;
  Echo echo;
  const std::vector<TokenId> clean{1, 1, 1, 1, 2, 2}, attacked{1, 1, 9, 1, 2, 2};
  CHECK(perplexity(echo, clean, s) ==
        doctest::Approx(std::pow(2 * 2 * 2 * 8, 0.25)).epsilon(1e-13));  // the sixth word is in no block
  const Perplexities found = perplexities(echo, clean, attacked, s);
  CHECK(found.clean == doctest::Approx(std::pow(2 * 2 * 2 * 8, 0.25)).epsilon(1e-13));
  CHECK(found.attacked == doctest::Approx(std::pow(2 * 8 * 8 * 8, 0.25)).epsilon(1e-13));
  CHECK(found.harm == doctest::Approx(std::cbrt(2 * 8 * 8) / std::cbrt(2 * 2 * 8)).epsilon(1e-13));
  CHECK_THROWS(perplexities(echo, clean, std::vector<TokenId>{1, 1, 1, 1}, s));
}

TEST_CASE("add_layers: appends a point with four digits for each layer") {
  const auto layer = [](double entropy, double norm, std::vector<double> rank) {
    return Routing{.entropy = entropy, .load = {1, 3}, .picks = {}, .norm = norm, .rank = std::move(rank)};
  };
  studies::Json curve;
  add_layers({layer(0.123456, 2, {0.5, 0.5}), layer(1, 3, {1, 0})}, curve);
  add_layers({layer(0.25, 4, {0.75, 0.25}), layer(2, 1e-7, {0, 1})}, curve);
  CHECK(curve == studies::Json{{"entropy", {{0.1235, 1.0}, {0.25, 2.0}}},
                               {"load_variation", {{0.5, 0.5}, {0.5, 0.5}}},
                               {"norm", {{2.0, 3.0}, {4.0, 1e-7}}},
                               {"rank_entropy", {{0.6931, 0.0}, {0.5623, 0.0}}}});
}

TEST_CASE("draw_all: bars of shares do not extend below 0") {
  if (!gnuplot::available()) return;
  Case only;
  only.name = "only";
  const auto run = [](double share) {
    return studies::Json{{"curve", {{"step", {1, 2}}, {"valid", {9, 8}}}},
                         {"layers", {{{"share", share}}, {{"share", share}}}}};
  };
  const auto svg = std::filesystem::temp_directory_path() / ("language_test." + std::to_string(getpid()) + ".svg");
  draw_all(svg, {{only}, {}, {"only"}, {{"Shares", "/share", 100, 1, true}}}, {{"only", {run(0), run(0.5)}}});
  std::ifstream file(svg);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(svg);
  CHECK(text.find(">Shares<") != std::string::npos);
  CHECK_FALSE(std::regex_search(text, std::regex("> *-[0-9.]+<")));  // no tic below 0
}
