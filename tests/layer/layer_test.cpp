#include "gatefold/layer/layer.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto model(Index width = 24) {
  return Stack{Residual{update::HeavyBall{},
                        PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                                                     GatedMlp<Silu>{.model_dim = width, .hidden_dim = 40}}}},
               3};
}

/// A layer of a user with its own state: y = x + s, s ← s + x.
struct Accumulate {
  Index width = 2;

  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> sum;
    GATEFOLD_PACK(sum)
  };
  Index in_dim() const { return width; }
  Index out_dim() const { return width; }
  template <class T, class B>
  void begin(typename B::Context& ctx, const Nothing<T, B>&, Index items, Carry<T, B>& carry) const {
    carry.sum.resize(items, width);
    fill(ctx, carry.sum.view(), 0);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, Out<T, 2, B> y,
               Nothing<T, B>&, const Nothing<T, B>& = {}) const {
    copy(ctx, x, y);
    add(ctx, carry.sum, y);
    add(ctx, x, carry.sum.view());
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> dy,
                Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    add(ctx, dy, dx);
    add(ctx, dcarry.sum, dx);
    add(ctx, dy, dcarry.sum.view());
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>& saved,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>& grads,
                const Nothing<T, B>& extra = {}) const {
    Nothing<T, B> none;
    backward(ctx, p, x, saved, dy, dcarry, dx, grads, extra, none);
  }
};

}  // namespace

TEST_CASE("Layer: a user-defined layer with a carry works in stacks") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Accumulate{}, 3}, 1);
  p.forward();
  // The layers give x, x + x and 2x + (x + x), and s sums all inputs: x + x + 2x.
  for (Index d = 0; d < 2; ++d) {
    CHECK(p.y(0, d) == doctest::Approx(4 * p.x(0, d)).epsilon(1e-15));
    CHECK(p.carry.sum(0, d) == doctest::Approx(4 * p.x(0, d)).epsilon(1e-15));
  }
  const auto report = check::conformance<Cpu, double>(Stack{Accumulate{}, 3}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Layer: validate finds the errors that forward would throw") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, model(), 5);
  CHECK(message_of([&] { validate(p.layer, p.params, 5, p.carry, p.extra); }) == "no ArgumentError");
  CHECK(message_of([&] { validate(p.layer, p.params, 6, p.carry, p.extra); }) ==
        "HeavyBall: carry.p: expected [6, 24], got [5, 24]");
}

TEST_CASE("Layer: for_each_mixture visits every mixture in depth order") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, model(), 5);
  p.forward();
  std::vector<const float*> seen;
  for_each_mixture(p.saved, [&](const auto& m) {
    seen.push_back(m.plan.weight.data());
    CHECK(m.plan.offsets(8) == 10);
  });
  REQUIRE(seen.size() == 3);
  for (std::size_t l = 0; l < 3; ++l) CHECK(seen[l] == p.saved.layers[l].calls[0].branch.plan.weight.data());
  int none = 0;
  for_each_mixture(Saved<LayerNorm, float, Cpu>{}, [&](const auto&) { ++none; });
  CHECK(none == 0);
}

TEST_CASE("Layer: two threads with own contexts can share weights") {
  Cpu::Context ctx(1);
  auto alone = pass<float>(ctx, model(), 60);
  alone.forward();
  alone.backward();
  const auto layer = model();
  const auto& params = alone.params;
  constexpr int runs = 8;
  std::vector<std::vector<double>> outcome(2 * runs);
  auto work = [&](int thread) {
    Cpu::Context own(1);
    for (int run = 0; run < runs; ++run) {
      auto p = pass<float>(own, layer, 60);
      layer.forward(own, params, p.x, p.carry, p.y, p.saved);
      backward(layer, own, params, p.x, p.saved, p.dy, p.dcarry, p.dx, p.grads);
      outcome[static_cast<std::size_t>(thread * runs + run)] = p.outcome();
    }
  };
  std::thread one(work, 0), two(work, 1);
  one.join();
  two.join();
  for (const auto& o : outcome) CHECK(same_bits(o, alone.outcome()));
}

TEST_CASE("Layer: the number of threads changes no bit") {
  std::vector<double> first, inferred;
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads);
    auto p = pass<float>(ctx, model(), 400), q = pass<float>(ctx, model(), 400);
    p.forward();
    p.backward();
    q.infer();
    if (threads == 1) first = p.outcome();
    CHECK(same_bits(p.outcome(), first));
    CHECK(same_bits(values(q.y, q.carry), values(p.y, p.carry)));
  }
}

TEST_CASE("Layer: an output has the same bits in any batch") {
  Cpu::Context ctx(2);
  auto large = pass<float>(ctx, model(33), 300), seven = pass<float>(ctx, model(33), 7),
       one = pass<float>(ctx, model(33), 1);
  large.forward();
  auto run = [&](auto& p, Index first) {
    const Index count = p.x.extent(0);
    copy(ctx, large.x.view().rows(first, count), p.x.view());
    p.layer.begin(ctx, p.params, count, p.carry);
    p.forward();
    return std::memcmp(p.y.data(), &large.y(first, 0), static_cast<std::size_t>(p.y.size()) * sizeof(float)) == 0 &&
           std::memcmp(p.carry.p.data(), &large.carry.p(first, 0),
                       static_cast<std::size_t>(p.y.size()) * sizeof(float)) == 0;
  };
  for (Index n = 0; n + 7 <= 300; n += 7) CHECK(run(seven, n));
  for (Index n = 0; n < 300; n += 3) CHECK(run(one, n));
}

TEST_CASE("Layer: dx has the same bits in any batch") {
  Cpu::Context ctx(2);
  auto large = pass<float>(ctx, model(33), 100), one = pass<float>(ctx, model(33), 1);
  large.forward();
  large.backward();
  for (Index n = 0; n < 100; n += 9) {
    copy(ctx, large.x.view().rows(n, 1), one.x.view());
    copy(ctx, large.dy.view().rows(n, 1), one.dy.view());
    set_zero(ctx, one.dx);
    one.layer.begin(ctx, one.params, 1, one.carry);
    one.layer.begin(ctx, one.params, 1, one.dcarry);
    one.forward();
    one.backward();
    CHECK(std::memcmp(one.dx.data(), &large.dx(n, 0), 33 * sizeof(float)) == 0);
  }
}

namespace {

/// Checks the error messages of a layer for wrong views in forward, infer and backward.
template <class L>
void check_wrong_views(const L& part, const std::string& name, const std::string& y_name) {
  constexpr Index items = 8;
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, part, items);
  const Index width = p.layer.in_dim(), out = p.layer.out_dim();
  std::vector<float> memory(static_cast<std::size_t>((2 * items + 1) * (width + out)), 0.5f);
  const auto before = memory;
  float* const at = memory.data();
  using Items = View<const float, 2, Cpu>;
  using Outputs = View<float, 2, Cpu>;
  const auto said = [&](Items x, Outputs y) {
    const std::string forward =
        support::message_of([&] { p.layer.forward(ctx, p.params, x, p.carry, y, p.saved, p.extra); });
    const std::string infer =
        support::message_of([&] { gatefold::infer<float, Cpu>(p.layer, ctx, p.params, x, p.carry, y, p.extra); });
    if (infer != forward && infer.find(".infer") == std::string::npos)
      FAIL_CHECK("infer: " << infer << ", forward: " << forward);
    return forward;
  };
  const auto shape = [](Index rows, Index columns) {
    return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
  };
  const std::string of_x = name + ".forward: x: expected ", any = "[?, " + std::to_string(width) + "], got ";
  const Outputs y(at + items * width, items, out);
  CAPTURE(name);
  CHECK(said({at, items, width + 1}, y) == of_x + any + shape(items, width + 1));
  CHECK(said({at, Index(0), width + 1}, {at, Index(0), out}) == of_x + any + shape(0, width + 1));
  CHECK(said({nullptr, Index(0), Index(0)}, {nullptr, Index(0), Index(0)}) == of_x + any + shape(0, 0));
  CHECK(said({at, Index(-1), width}, {at, Index(-1), out}) == of_x + any + shape(-1, width));
  CHECK(said({nullptr, items, width}, y) ==
        of_x + "memory of " + std::to_string(items * width) + " elements, got a null pointer");
  CHECK(said({at, items, width}, {nullptr, items, out}) == name + ".forward: " + y_name + ": expected memory of " +
                                                               std::to_string(items * out) +
                                                               " elements, got a null pointer");
  const std::string shared =
      name + ".forward: " + y_name + ": expected memory that does not overlap x, got memory of x";
  CHECK(said({at, items, width}, {at, items, out}) == shared);
  CHECK(said({at, items, width}, {at + items * width - 1, items, out}) == shared);
  CHECK(said({at + items * out - 1, items, width}, {at, items, out}) == shared);
  CHECK(memory == before);  // nothing was written

  p.layer.begin(ctx, p.params, items, p.carry);
  p.forward();
  const auto said_backward = [&](Items x, Items dy, Outputs dx) {
    return support::message_of(
        [&] { backward(p.layer, ctx, p.params, x, p.saved, dy, p.dcarry, dx, p.grads, p.extra); });
  };
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  };
  CHECK(ends_with(said_backward({at, items, width}, {at + items * width, items, out}, {at + 1, items, width}),
                  ".backward: dx: expected memory that does not overlap x, got memory of x"));
  CHECK(ends_with(said_backward({at + items * (width + out), items, width}, {at, items, out}, {at + 1, items, width}),
                  ".backward: dx: expected memory that does not overlap dy, got memory of dy"));
  CHECK(ends_with(
      said_backward(p.x, p.dy, {nullptr, items, width}),
      ".backward: dx: expected memory of " + std::to_string(items * width) + " elements, got a null pointer"));
  CHECK(memory == before);
  const auto params = support::values(p.params);
  CHECK(ends_with(support::message_of(
                      [&] { backward(p.layer, ctx, p.params, p.x, p.saved, p.dy, p.dcarry, p.dx, p.params, p.extra); }),
                  ".backward: grads: expected a separate pack, got the parameters"));
  CHECK(support::values(p.params) == params);
}

}  // namespace

TEST_CASE("layers: wrong or overlapping views throw before any write") {
  const Linear linear{.model_dim = 4};
  const auto residual = Residual{update::HeavyBall{}, OneExpert{linear}};
  check_wrong_views(residual, "Residual", "y");
  check_wrong_views(Stack{residual, 2}, "Stack", "y");
  check_wrong_views(Chain{linear, residual}, "Chain", "y");
  check_wrong_views(PerToken{3, residual}, "PerToken", "y");
  check_wrong_views(Block{Residual{update::Plain{}, Attention{.model_dim = 4, .heads = 2}}, residual}, "Block", "y");
  check_wrong_views(OneExpert{linear}, "OneExpert", "u");
  check_wrong_views(Attention{.model_dim = 4, .heads = 2}, "Attention", "u");
  check_wrong_views(PreNorm{LayerNorm{}, OneExpert{linear}}, "PreNorm", "u");
  check_wrong_views(WithShared{OneExpert{linear}, linear}, "WithShared", "u");
  check_wrong_views(Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, linear}, "Mixture", "u");
}
