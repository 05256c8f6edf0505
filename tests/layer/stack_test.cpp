#include "gatefold/layer/stack.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto layer() {
  return Residual{update::HeavyBall{.mu = 0.6, .gamma = 1.25},
                  Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                          Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}}};
}

/// A branch whose output u is the number of its layer, counted from 1, followed by the step. It gets the number in the
/// same way as noise.
struct TellsItsPlace {
  template <class T, class B>
  struct Extra {
    Index layer = -1;
    Extra at(Index l) const { return {l}; }
  };
  Index in_dim() const { return 1; }
  Index out_dim() const { return 1; }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, Out<T, 2, B> u, Nothing<T, B>&,
               const Extra<T, B>& extra, const Step& step = {}) const {
    fill(ctx, u, T(extra.layer + 1));
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B>,
                Out<T, 2, B>, Nothing<T, B>&, const Extra<T, B>&, Nothing<T, B>&) const {}
};

}  // namespace

TEST_CASE("Stack (1): equals its layers written out, bit for bit") {
  for (const Index depth : {1, 3}) {
    Cpu::Context ctx(1);
    auto p = pass<float>(ctx, Stack{layer(), depth}, 9);
    fill_uniform(ctx, Seed{5}, -1, 1, p.carry.p);
    fill_uniform(ctx, Seed{6}, -1, 1, p.dcarry.p);
    std::vector<Pass<float, decltype(layer())>> out;
    for (Index l = 0; l < depth; ++l) {
      out.push_back(pass<float>(ctx, layer(), 9));
      copy_pack(ctx, p.params.layers[std::size_t(l)], out.back().params);
    }
    Carry<decltype(layer()), float, Cpu> carry, dcarry;
    carry.p = constant_tensor<float>(ctx, 0, 9, 4);
    dcarry.p = constant_tensor<float>(ctx, 0, 9, 4);
    copy_pack(ctx, p.carry, carry);
    copy_pack(ctx, p.dcarry, dcarry);
    copy(ctx, p.x, out.front().x.view());
    copy(ctx, p.dy, out.back().dy.view());
    for (std::size_t l = 0; l < out.size(); ++l) {
      if (l > 0) copy(ctx, out[l - 1].y, out[l].x.view());
      layer().forward(ctx, out[l].params, out[l].x, carry, out[l].y, out[l].saved);
    }
    p.forward();
    CHECK(same_bits(values(p.y, p.carry), values(out.back().y, carry)));
    for (std::size_t l = out.size(); l-- > 0;) {
      backward(layer(), ctx, out[l].params, out[l].x, out[l].saved, out[l].dy, dcarry, out[l].dx, out[l].grads);
      if (l > 0) copy(ctx, out[l].dx, out[l - 1].dy.view());
    }
    p.backward();
    CHECK(same_bits(values(p.dx, p.dcarry), values(out.front().dx, dcarry)));
    for (std::size_t l = 0; l < out.size(); ++l) CHECK(same_bits(values(p.grads.layers[l]), values(out[l].grads)));
  }
}

TEST_CASE("Stack: three heavy-ball layers of mixtures equal loops in double") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, Stack{layer(), 3}, 9);
  p.forward();
  std::vector<double> y, momentum;
  for (Index n = 0; n < 9; ++n) {
    auto x = naive::row(p.x, n);
    std::vector<double> m(4, 0);
    for (const auto& params : p.params.layers) {
      const auto u = naive::mixture(params.branch, x, 2, true, [&](Index e, const naive::Row& in) {
        return naive::mlp(params.branch.expert, e, in, naive::gelu);
      });
      for (std::size_t d = 0; d < 4; ++d) {
        m[d] = 0.6 * m[d] + u[d];
        x[d] += 1.25 * m[d];
      }
    }
    y.insert(y.end(), x.begin(), x.end());
    momentum.insert(momentum.end(), m.begin(), m.end());
  }
  CHECK(difference(values(p.y), y) <= 1e-13);
  CHECK(difference(values(p.carry), momentum) <= 1e-13);
}

TEST_CASE("Stack: infer returns the bits of forward, including the carry") {
  for (const Index depth : {1, 2, 5}) {
    Cpu::Context ctx(1);
    auto a = pass<float>(ctx, Stack{layer(), depth}, 9), b = pass<float>(ctx, Stack{layer(), depth}, 9);
    a.forward();
    b.infer();
    CHECK(same_bits(values(a.y, a.carry), values(b.y, b.carry)));
    CHECK(b.saved.layers.empty());
  }
}

TEST_CASE("Stack: a shallower stack can reuse a deeper stack's saved") {
  Cpu::Context ctx(1);
  auto deep = pass<float>(ctx, Stack{layer(), 3}, 9), shallow = pass<float>(ctx, Stack{layer(), 2}, 9),
       again = pass<float>(ctx, Stack{layer(), 2}, 9);
  deep.forward();
  const float* const kept = deep.saved.between[1].data();
  std::swap(again.saved, deep.saved);
  for (auto* p : {&shallow, &again}) {
    p->forward();
    p->backward();
    int mixtures = 0;
    for_each_mixture(p->saved, [&](const auto&) { ++mixtures; });
    CHECK(mixtures == 2);
  }
  CHECK(again.saved.between[1].data() == kept);
  CHECK(same_bits(values(again.dx, again.grads), values(shallow.dx, shallow.grads)));
}

TEST_CASE("Stack: layers have own weights; names contain the layer number") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Stack{layer(), 2}, 1);
  CHECK_FALSE(same_bits(values(p.params.layers[0]), values(p.params.layers[1])));
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
  REQUIRE(names.size() == 12);
  CHECK(names[0] == "layers.0.branch.gate.scores.weight");
  CHECK(names[11] == "layers.1.branch.expert.down_bias");
}

TEST_CASE("Stack: forks noise by the layer's position") {
  Cpu::Context ctx(1);
  const Stack stack{Residual{update::Plain{}, TellsItsPlace{}}, 3};
  auto p = pass<double>(ctx, stack, 1), inferred = pass<double>(ctx, stack, 1);
  p.forward();
  inferred.infer();
  CHECK(p.y(0, 0) == doctest::Approx(p.x(0, 0) + 1 + 2 + 3).epsilon(1e-15));
  CHECK(inferred.y(0, 0) == p.y(0, 0));
}

TEST_CASE("Stack: wrong parameters of the last layer throw before writing") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Stack{layer(), 3}, 5);
  fill(ctx, p.carry.p.view(), 3);
  p.params.layers[2].branch.expert.down.resize(3, 4, 4);
  for (const auto run : {&decltype(p)::forward, &decltype(p)::infer}) {
    CHECK(message_of([&] { (p.*run)(); }) == "Mlp: params.down: expected [3, 5, 4], got [3, 4, 4]");
    CHECK(p.untouched());
    CHECK(values(p.carry) == std::vector<double>(20, 3));
    CHECK(p.saved.layers.empty());
    CHECK(p.saved.between.empty());
  }
}

TEST_CASE("Stack: wrong shapes or options throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, Stack{layer(), 2}, 5);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.layers.empty());
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(5, 3); }) == "Stack.forward: x: expected [?, 4], got [5, 3]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 4, 4); }) ==
        "Stack.forward: y: expected [5, 4], got [4, 4]");
  CHECK(message([](auto& p) { p.params.layers.pop_back(); }) ==
        "Stack: params.layers.size(): expected 2 (the depth of this Stack), got 1");
  CHECK(message([](auto& p) { p.layer.depth = 3; }) ==
        "Stack: params.layers.size(): expected 3 (the depth of this Stack), got 2");
  CHECK(message([](auto& p) { p.carry.p.resize(4, 4); }) == "HeavyBall: carry.p: expected [5, 4], got [4, 4]");
  CHECK(message_of([&] {
          (void)Stack{layer(), 0}.init<float, Cpu>(ctx, {});
        }) == "Stack: depth: expected at least 1, got 0");
  const Stack narrowing{Linear{.model_dim = 4, .output_dim = 3}, 2};
  CHECK(message_of([&] { (void)narrowing.init<float, Cpu>(ctx, {}); }) ==
        "Stack: layer.out_dim: expected 4 (its in_dim, because depth is more than 1), got 3");
}

TEST_CASE("Stack: depth 1 may change the width; experts are accepted") {
  const auto report =
      check::conformance<Cpu, double>(Stack{Linear{.model_dim = 4, .output_dim = 3}}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  const auto plain = check::conformance<Cpu, double>(Stack{Mlp<Silu>{.model_dim = 4, .hidden_dim = 3}, 2},
                                                     {.items_are_independent = true});
  CHECK_MESSAGE(plain, plain.str());
}

TEST_CASE("Stack: gradients and conformance") {
  const auto report = check::conformance<Cpu, double>(Stack{layer(), 3}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}
