#include "gatefold/train/select_experts.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/expert/patch_cnn.hpp"
#include "gatefold/expert/patch_mlp.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/expert/transformer_expert.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/multi_gate.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/merged_transformer.hpp"
#include "gatefold/tensor/find.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/every_gate.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 6, items = 9;

template <class F>
std::string what(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Returns the dimension in which two tensors for different numbers of experts differ, or -1 if there is none. So this
/// test finds the dimension of the experts without the declarations of the gates.
int expert_extent(const auto& a, const auto& b) {
  int found = -1;
  for (int d = 0; d < a.rank; ++d) {
    if (a.extent(d) == b.extent(d)) continue;
    CHECK(found == -1);
    found = d;
  }
  return found;
}
/// Requires that `to` holds the experts of `from` that are in `list`, by a loop over elements.
struct CheckSelected {
  const std::vector<Index>& list;
  void operator()(const Name& at, const auto& from, const auto& other, const auto& to) const {
    const int extent = expert_extent(from, other);
    Index outer = 1, inner = 1;
    for (int d = 0; d < from.rank; ++d) {
      if (d < extent) outer *= from.extent(d);
      if (d > extent) inner *= from.extent(d);
    }
    const Index before = extent < 0 ? 1 : from.extent(extent);
    const std::vector<Index> places = extent < 0 ? std::vector<Index>{0} : list;
    const Index after = static_cast<Index>(places.size());
    INFO(at.str());
    REQUIRE(to.size() == outer * after * inner);
    for (Index o = 0; o < outer; ++o)
      for (Index i = 0; i < after; ++i)
        for (Index j = 0; j < inner; ++j)
          REQUIRE(to.data()[(o * after + i) * inner + j] ==
                  from.data()[(o * before + places[std::size_t(i)]) * inner + j]);
  }
};
/// Gives every element a different number, so that no two experts are equal.
void number(auto& params) {
  double next = 1;
  for_each_tensor(
      [&](const Name&, auto& t) {
        using T = std::remove_cvref_t<decltype(*t.data())>;
        for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(next++);
      },
      params);
}
/// @param make  make(experts) returns a mixture
void check_mixture(const auto& make) {
  Cpu::Context ctx(1);
  auto params = init_params<double, Cpu>(make(4), ctx, Seed{1});
  const auto other = init_params<double, Cpu>(make(7), ctx, Seed{1});
  number(params);
  for (const std::vector<Index>& list :
       {std::vector<Index>{2}, {0, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}, {1, 1, 0, 2, 3, 1}}) {
    const auto selected = select_experts(ctx, params, list);
    const CheckSelected check{list};
    for_each_tensor(check, params, other, selected);
    expect_like("test", "selected", init_params<double, Cpu>(make(static_cast<Index>(list.size())), ctx, Seed{1}),
                selected);
  }
}

template <class G>
G gate_with(Index experts) {
  G gate = gate_of<G>(experts);
  if constexpr (requires { gate.selection.k = Index(1); }) gate.selection.k = 1;
  if constexpr (requires { gate.selection.selection.k = Index(1); }) gate.selection.selection.k = 1;
  return gate;
}

}  // namespace

TEST_CASE_TEMPLATE("select_experts: every gate's tensors follow their experts", G, SoftmaxTopK, SoftmaxNoisyTop1,
                   PatchNoisyTop1, SoftmaxNoisyTopK, VMoe, Switch, GShardTop2, XMoe, SmoeDropout, SigmoidTopK,
                   SoftmaxExpertChoice, SoftMoe, SimilarityAware<XMoe>, AttentionAware<SoftmaxTopK>) {
  check_mixture([](Index experts) { return Mixture{gate_with<G>(experts), Linear{.model_dim = dim}}; });
}

TEST_CASE("select_experts: works for gates with learned metric or without bias") {
  check_mixture([](Index experts) {
    SimilarityAware<SoftmaxTopK> gate{.scores = {.experts = experts, .bias = false}, .selection = {.k = 1}};
    gate.mixing.learned_metric = true;
    return Mixture{gate, Linear{.model_dim = dim}};
  });
  check_mixture([](Index experts) {
    return Mixture{XMoe{.scores = CosineScores::reference({.experts = experts}), .selection = {.k = 1}},
                   Linear{.model_dim = dim}};
  });
  check_mixture([](Index experts) {
    return Mixture{ComposedGate<PatchScores, Independent, TopK>{.scores = {.experts = experts, .length = 3},
                                                                .selection = {.k = 1}},
                   Linear{.model_dim = dim}};
  });
}

TEST_CASE("select_experts: the gates of all tasks follow their shared experts") {
  check_mixture([](Index experts) {
    return MultiGate{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 1}}, Linear{.model_dim = dim}, 3};
  });
}

TEST_CASE("select_experts: works for every kind of expert") {
  const auto with = [](const auto& expert) {
    check_mixture([&](Index experts) {
      return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 1}}, expert};
    });
  };
  with(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5});
  with(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 5});
  with(HiddenDropout{0.3, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}});
  with(SigmoidGated{Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}});
  with(LayerNorm{.model_dim = dim});
  with(RmsNorm{.model_dim = dim});
  with(PatchMlp<Cubic>{.model_dim = 2, .patches = 3, .filters = 5, .outputs = 5});
  with(PatchCnn<Cubic>{.model_dim = 2, .patches = 3, .filters = 5, .outputs = 5});
  with(AttentionExpert{.model_dim = 2, .length = 3, .outputs = 5});
  with(AttentionExpert{.model_dim = 2, .length = 3, .outputs = 5, .key_dim = 4});
  with(MultiHeadExpert{.model_dim = 2, .heads = 2, .length = 3});
  with(TransformerExpert<Gelu>{.model_dim = 2, .hidden_dim = 5, .heads = 2, .length = 3});
  with(MergedTransformer<Gelu>{.model_dim = 2, .length = 3, .heads = 2, .filters = 6});
}

TEST_CASE("select_experts: experts of several kinds are numbered consecutively") {
  Cpu::Context ctx(1);
  const auto make = [](Index mlps, Index linears) {
    return Mixture{
        SoftmaxTopK{.selection = {.k = 1}},
        Experts{std::tuple{Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}, Linear{.model_dim = dim}}, {mlps, linears}}};
  };
  auto params = init_params<double, Cpu>(make(2, 3), ctx, Seed{1});
  number(params);
  const auto selected = select_experts(ctx, params, {1, 0, 1, 4});
  expect_like("test", "selected", init_params<double, Cpu>(make(3, 1), ctx, Seed{1}), selected);
  const auto& up = std::get<0>(params.expert.kinds).up;
  const auto& to = std::get<0>(selected.expert.kinds).up;
  for (Index i = 0; i < dim; ++i)
    for (Index h = 0; h < 5; ++h) {
      CHECK(to(0, i, h) == up(1, i, h));
      CHECK(to(1, i, h) == up(0, i, h));
      CHECK(to(2, i, h) == up(1, i, h));
    }
  for (Index i = 0; i < dim; ++i)
    CHECK(std::get<1>(selected.expert.kinds).weight(0, i, 2) == std::get<1>(params.expert.kinds).weight(2, i, 2));
  for (Index i = 0; i < dim; ++i) CHECK(selected.gate.scores.weight(i, 3) == params.gate.scores.weight(i, 4));
  const std::string wanted = "select_experts: list: expected experts below 5, sorted by kind";
  CHECK(what([&] { select_experts(ctx, params, {2, 0}); }) == wanted + ", got 0");
  CHECK(what([&] { select_experts(ctx, params, {0, 3, 1}); }) == wanted + ", got 1");
}

namespace {

/// A model in which a mixture is nested in other layers.
auto model(Index experts, Index depth = 2) {
  return Stack{Residual{update::HeavyBall{.mu = 0.5},
                        PreNorm{LayerNorm{},
                                WithShared{Mixture{SigmoidTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                                                   Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}},
                                           Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}}}},
               depth};
}
template <class O>
auto trained(Cpu::Context& ctx, const auto& of, const O& optimizer, int steps) {
  Trainer trainer{ctx, of, MeanSquaredError{}, optimizer, Seed{1}};
  // Makes expert 1 get no item.
  for_each_tensor(
      [](const Name& name, auto& t) {
        if (name.str().ends_with("selection.bias")) t.data()[1] = -1000;
      },
      trainer.params);
  for (int t = 0; t < steps; ++t) {
    const auto x = uniform_tensor<float>(ctx, Seed{std::uint64_t(10 + t)}, 1, items, dim);
    trainer.step(x, x);
  }
  return trainer;
}
std::vector<double> outputs(auto& run) {
  const auto x = uniform_tensor<float>(run.context(), Seed{99}, 1, items, dim);
  Tensor<float, 2, Cpu> y(items, dim);
  run.infer(x, y);
  return values(y);
}

}  // namespace

TEST_CASE("select_experts: removing unused experts changes no output bit") {
  Cpu::Context ctx(1);
  auto before = trained(ctx, model(4), optim::AdamW{.lr = 0.01}, 4);
  Trainer after{ctx, model(3), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{2}};
  select_experts(before, {0, 2, 3}, after);
  CHECK(same_bits(outputs(before), outputs(after)));
}

TEST_CASE("select_experts: removing unused experts keeps renormalised outputs") {
  Cpu::Context ctx(1);
  for (const Index k : {1, 2}) {
    const auto make = [k](Index experts) {
      return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k}}, Linear{.model_dim = dim}};
    };
    auto params = init_params<double, Cpu>(make(4), ctx, Seed{3});
    for (Index d = 0; d < dim; ++d) params.gate.scores.weight(d, 2) = 0;
    params.gate.scores.bias(2) = -50;
    const auto fewer = select_experts(ctx, params, {0, 1, 3});
    const auto x = uniform_tensor<double>(ctx, Seed{4}, 1, items, dim);
    Tensor<double, 2, Cpu> u(items, dim), v(items, dim);
    make(4).infer(ctx, params, x, u);
    make(3).infer(ctx, fewer, x, v);
    if (k == 1) CHECK(same_bits(values(u), values(v)));
    CHECK(difference(values(v), values(u)) < 1e-14);
  }
}

TEST_CASE("select_experts: removing unused experts keeps the losses of training") {
  Cpu::Context ctx(1);
  const optim::Clipped optimizer{
      InGroups{+[](const Name& name) { return name.str().find("gate") != std::string::npos; },
               optim::Sgd{.lr = 0.05, .momentum = 0.9}, optim::AdamW{.lr = 0.01}}};
  auto before = trained(ctx, model(4), optimizer, 3);
  Trainer after{ctx, model(3), MeanSquaredError{}, optimizer, Seed{2}};
  select_experts(before, {0, 2, 3}, after);
  CHECK(after.state.step == 3);
  // The bias must not adapt, because the mean load depends on the number of experts.
  find(before.params, "layers.0.branch.branch.branch.gate.selection.speed").data()[0] = 0;
  find(before.params, "layers.1.branch.branch.branch.gate.selection.speed").data()[0] = 0;
  find(after.params, "layers.0.branch.branch.branch.gate.selection.speed").data()[0] = 0;
  find(after.params, "layers.1.branch.branch.branch.gate.selection.speed").data()[0] = 0;
  for (int t = 0; t < 4; ++t) {
    const auto x = uniform_tensor<float>(ctx, Seed{std::uint64_t(50 + t)}, 1, items, dim);
    CHECK(before.step(x, x) == doctest::Approx(after.step(x, x)).epsilon(1e-6));
  }
  CHECK(difference(outputs(after), outputs(before)) < 1e-4);
}

TEST_CASE("select_experts: a reordering, then its inverse, restores the trainer") {
  Cpu::Context ctx(1);
  auto first = trained(ctx, model(4), optim::AdamW{.lr = 0.01}, 3);
  Trainer turned{ctx, model(4), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{2}};
  Trainer back{ctx, model(4), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{3}};
  select_experts(first, {2, 0, 3, 1}, turned);
  CHECK(!same_bits(values(turned.params), values(first.params)));
  CHECK(difference(outputs(turned), outputs(first)) < 1e-5);  // slots are summed in another order
  select_experts(turned, {1, 3, 0, 2}, back);
  CHECK(same_bits(values(back.params), values(first.params)));
  CHECK(same_bits(values(back.state), values(first.state)));
  CHECK(back.state.step == first.state.step);
}

TEST_CASE("select_experts: accepts one list per mixture, for parameters and state") {
  Cpu::Context ctx(1);
  auto run = trained(ctx, model(4), optim::AdamW{.lr = 0.01}, 2);
  const std::vector<std::vector<Index>> lists{{0, 3}, {2, 1}};
  const auto params = select_experts(ctx, run.params, lists);
  const auto state = select_experts(ctx, run.state, lists);
  CHECK(state.step == 2);
  for (Index layer = 0; layer < 2; ++layer) {
    const std::string up = "layers." + std::to_string(layer) + ".branch.branch.branch.expert.up";
    for (Index i = 0; i < 2; ++i) {
      const Index e = lists[std::size_t(layer)][std::size_t(i)];
      CHECK(find<3>(params, up)(i, 1, 2) == find<3>(run.params, up)(e, 1, 2));
      CHECK(find<3>(state, "m." + up)(i, 1, 2) == find<3>(run.state, "m." + up)(e, 1, 2));
      CHECK(find<3>(state, "v." + up)(i, 1, 2) == find<3>(run.state, "v." + up)(e, 1, 2));
    }
  }
  CHECK(same_bits(values(params.layers[0].branch.branch.shared), values(run.params.layers[0].branch.branch.shared)));
}

TEST_CASE("select_experts: wrong lists and models throw and change nothing") {
  Cpu::Context ctx(1);
  auto run = trained(ctx, model(4), optim::AdamW{.lr = 0.01}, 2);
  Trainer other{ctx, model(3), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{2}};
  const auto before = values(other.params, other.state);
  const auto said = [&](const ExpertLists& lists) { return what([&] { select_experts(run, lists, other); }); };
  CHECK(said({0, 1}) ==
        "select_experts: to.params.layers.0.branch.branch.branch.gate.scores.weight: expected [6, 2], got [6, 3]");
  CHECK(said({0, 1, 4}) ==
        "select_experts: list: expected experts of layers.0.branch.branch.branch.gate.scores.weight, 0 to 3, got 4");
  CHECK(said({0, -1, 2}).ends_with("0 to 3, got -1"));
  CHECK(said(std::vector<Index>{}) == "select_experts: list: expected at least one expert, got none");
  CHECK(said(std::vector<std::vector<Index>>{}) == "select_experts: list: expected at least one list, got 0");
  CHECK(said(std::vector<std::vector<Index>>{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}) ==
        "select_experts: list: expected 1 list, or 2 (one for each mixture), got 3");
  CHECK(same_bits(values(other.params, other.state), before));
  CHECK(other.state.step == 0);
  const auto dense = init_params<float, Cpu>(OneExpert{Linear{.model_dim = dim}}, ctx, Seed{1});
  CHECK(what([&] { select_experts(ctx, dense, {0}); }) ==
        "select_experts: pack: expected parameters or a state of a model with a Mixture, got no Mixture");
}
