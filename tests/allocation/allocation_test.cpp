// After the first call, neither forward with backward nor infer allocates heap memory.

#include <doctest/doctest.h>

#include <gatefold/gatefold.hpp>
#include <string>
#include <vector>

#include "support/counted_allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::allocations;

namespace {

constexpr Index dim = 12;

const SoftmaxTopK top_2{.scores = {.experts = 4}, .selection = {.k = 2}};
const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = 20};

/// Returns how many allocations f() makes, without those of doctest.
template <class F>
int counted(F&& f) {
  const int before = allocations;
  f();
  return allocations - before;
}

template <class E>
void set_length(E& extra, Index length) {
  if constexpr (requires { extra.length; }) extra.length = length;
  if constexpr (requires { extra.mixing.length; }) extra.mixing.length = length;
  if constexpr (requires { extra.selection.length; }) extra.selection.length = length;
  if constexpr (requires { extra.attention.length; }) extra.attention.length = length;
  if constexpr (requires { extra.probability; }) extra.noise.random = Random{Seed{1}, 1};
}

/// Gives each of `count` items a token, if the extra inputs take tokens.
template <class E>
void set_ids(E& extra, Index count) {
  static const std::vector<Index> ids(1000, 2);
  if constexpr (requires { extra.selection.ids; }) extra.selection.ids = View<const Index, 1, Cpu>(ids).rows(0, count);
}

/// Draws new items for every step. With alike = 0, the items spread evenly over all experts. With alike = 1, all items
/// are equal and go to the same experts.
void draw(Cpu::Context& ctx, Tensor<float, 2, Cpu>& x, float alike, Index step) {
  const auto own = uniform_tensor<float>(ctx, Seed{9}.fork(step), 1, x.extent(0), x.extent(1)),
             of_all = uniform_tensor<float>(ctx, Seed{7}, 4, 1, x.extent(1));
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index d = 0; d < x.extent(1); ++d) x(n, d) = (1 - alike) * own(n, d) + alike * of_all(0, d);
}

template <class L>
void expect_no_memory(const std::string& name, const L& part, Index items = 96, Index length = 8, bool eager = true) {
  CAPTURE(name);
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    Cpu::Context trains(threads, eager), infers(threads, eager), draws(1);
    auto p = support::pass<float>(trains, part, items);
    set_length(p.extra, length);
    const auto train = [&] {
      set_ids(p.extra, items);
      p.layer.begin(trains, p.params, items, p.carry);
      p.layer.begin(trains, p.params, items, p.dcarry);
      p.forward();
      p.backward();
    };
    const auto infer = [&](Index count) {
      set_ids(p.extra, count);
      p.layer.begin(infers, p.params, count, p.carry);
      gatefold::infer<float, Cpu>(p.layer, infers, p.params, p.x.view().rows(0, count), p.carry,
                                  p.y.view().rows(0, count), p.extra);
    };
    train();
    infer(items);
    int by_training = 0, by_inference = 0;
    Index step = 0;
    for (const float alike : {0.0F, 1.0F, 0.5F, 0.9F, 0.2F, 0.0F}) {
      draw(draws, p.x, alike, ++step);
      by_training += counted(train);
      by_inference += counted([&] {
        for (const Index count : {items, 2 * length, items}) infer(count);
      });
    }
    CHECK(by_training == 0);
    CHECK(by_inference == 0);
  }
}

template <class G>
void check_gate(const std::string& name, const G& gate) {
  expect_no_memory(name, Residual{update::HeavyBall{}, Mixture{gate, mlp}});
}
template <class R>
void check_rule(const std::string& name, const R& rule) {
  expect_no_memory(name, Stack{Residual{rule, Mixture{top_2, Linear{.model_dim = dim}}}, 3});
}
template <class E>
void check_expert(const std::string& name, const E& expert) {
  expect_no_memory(name, Mixture{SoftmaxTopK{.scores = {.experts = 4, .length = 2}, .selection = {.k = 2}}, expert});
}

}  // namespace

#if GATEFOLD_TEST_COUNTS

TEST_CASE("counted: counts allocations of the library and of containers") {
  const int of_backend = counted([] { Cpu::release(Cpu::allocate(1)); });
  const int of_vector = counted([] { std::vector<int> three(3); });
  CHECK(of_backend == 1);
  CHECK(of_vector == 1);
}

TEST_CASE("gates: allocate nothing after the first call") {
  check_gate("SoftmaxTopK", top_2);
  check_gate("auxiliary losses", WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{.scores = {.experts = 4}});
  check_gate("VMoe", VMoe{.scores = {.experts = 4}, .selection = {.batch_priority = true}});
  check_gate("XMoe", XMoe{.scores = {.experts = 4}});
  check_gate("SigmoidTopK", SigmoidTopK{.scores = {.experts = 4}});
  check_gate("ExpertChoice", SoftmaxExpertChoice{.scores = {.experts = 4}});
  check_gate("ReMoe", ReMoe{.scores = {.experts = 4}, .selection = {.coefficient = 0.3}});
  check_gate("GlobalBalance", ComposedGate<LinearScores, Independent, GlobalBalance<TopK>>{
                                  .scores = {.experts = 4}, .selection = {.weight = 0.3}});
  check_gate("StableMoe", StableMoe{.scores = {.experts = 4}, .selection = {.vocabulary = 5}});
  check_gate("HierarchicalGate", HierarchicalGate<SoftmaxTopK, SoftmaxTopK>{
                                     .primary = {.scores = {.experts = 2}, .selection = {.k = 1}},
                                     .secondary = {.scores = {.experts = 2}, .selection = {.k = 2}}});
  check_gate("SoftMoe", SoftMoe{.count = 4, .slots = 2});
  check_gate("SimilarityAware", SimilarityAware<SoftmaxTopK>{.scores = {.experts = 4}});
}

TEST_CASE("routings: another routing of as many items allocates nothing") {
  // At these sizes the engine divides work among threads and packs weights. Some experts have many blocks of rows,
  // others have few rows.
  const auto check_wide = [](const std::string& name, const auto& gate, Index items) {
    expect_no_memory(name, Residual{update::HeavyBall{}, Mixture{gate, Mlp<Gelu>{.model_dim = 64, .hidden_dim = 256}}},
                     items, 4, false);
  };
  const auto top = [](Index experts, Index k) {
    return SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k}};
  };
  for (const Index items : {40, 300, 1500}) check_wide("SoftmaxTopK", top(8, 2), items);
  check_wide("SoftmaxTopK, many experts", top(64, 1), 600);
  check_wide("VMoe", VMoe{.scores = {.experts = 8}, .selection = {.batch_priority = true}}, 300);
  check_wide("ExpertChoice", SoftmaxExpertChoice{.scores = {.experts = 8}}, 300);
  check_wide("SimilarityAware", SimilarityAware<SoftmaxTopK>{.scores = {.experts = 8}}, 300);
}

TEST_CASE("sequences: threads allocate nothing after the first call") {
  const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = 4}};
  expect_no_memory("SimilarityAware", Mixture{SimilarityAware<SoftmaxTopK>{.scores = {.experts = 4}}, mlp}, 4 * 160,
                   160);
  expect_no_memory("Block",
                   Block{Residual{update::Plain{}, Attention{.model_dim = dim, .heads = 2}},
                         Residual{update::Plain{}, Mixture{gate, mlp}}},
                   4 * 160, 160);
}

TEST_CASE("layers with different options: allocate nothing after the first call") {
  const auto layer = [](Index window) {
    return Residual{
        update::Plain{},
        PreNorm{RmsNorm{},
                GroupedQueryAttention{.model_dim = dim, .heads = 4, .kv_heads = 2, .head_dim = 6, .window = window}}};
  };
  auto in_chunks = layer(0);
  in_chunks.branch.branch.norm = QueryKeyNorm::rotated_head;
  in_chunks.branch.branch.chunk = 5;
  in_chunks.branch.branch.temperature.floor_scale = 2;
  expect_no_memory("stack_of", Chain{stack_of(std::vector{layer(0), layer(5), in_chunks}), RmsNorm{.model_dim = dim}});
  const Mixture mixture{top_2, mlp};
  const auto either = [&](bool dense) { return Residual{update::Plain{}, Either{mixture, OneExpert{mlp}, dense}}; };
  expect_no_memory("Either", Chain{stack_of(std::vector{either(true), either(false)}), RmsNorm{.model_dim = dim}});
}
TEST_CASE("LatentMixture: allocates nothing after the first call") {
  expect_no_memory("LatentMixture", Residual{update::Plain{}, LatentMixture{Mixture{top_2, mlp}, 2 * dim, true}});
}

TEST_CASE("Competition: allocates nothing after the first call") {
  for (const double probability : {0.0, 1.0})
    expect_no_memory("Competition", Stack{Residual{update::Plain{}, Competition{Mixture{top_2, mlp}, probability}}, 2});
}

TEST_CASE("update rules: allocate nothing after the first call") {
  check_rule("Adam, then HeavyBall", update::First{update::Adam{.epsilon = 0.3}, update::HeavyBall{}});
  check_rule("Robust", update::Robust{});
  check_rule("Nesterov", update::Nesterov{});
  check_rule("SharpnessAware", update::SharpnessAware{});
  check_rule("ComplexMomentum", update::ComplexMomentum{});
  check_rule("ZeroOrderHold", update::ZeroOrderHold{});
  check_rule("LearnedHeavyBall", update::LearnedHeavyBall{});
}

TEST_CASE("experts: allocate nothing after the first call") {
  check_expert("GatedMlp", GatedMlp<Silu>{.model_dim = 2 * dim, .hidden_dim = 20});
  check_expert("PatchMlp", PatchMlp<Cubic>{.model_dim = dim, .patches = 2, .filters = 8, .outputs = 4});
  check_expert("AttentionExpert", AttentionExpert{.model_dim = dim, .length = 2});
  check_expert("AttentionExpert, factors", AttentionExpert{.model_dim = dim, .length = 2, .key_dim = 3});
  check_expert("TransformerExpert",
               TransformerExpert<Gelu>{.model_dim = dim, .hidden_dim = 20, .heads = 2, .length = 2});
  check_expert("Experts", Experts<Mlp<Gelu>, Linear>{.kinds = {Mlp<Gelu>{2 * dim, 20}, Linear{.model_dim = 2 * dim}},
                                                     .counts = {2, 2}});
}

TEST_CASE("models: allocate nothing after the first call") {
  const Mixture mixture{top_2, mlp};
  const Residual layer{update::HeavyBall{}, PreNorm{LayerNorm{}, mixture}};
  expect_no_memory(
      "Chain", Chain{Stack{layer, 3}, Residual{update::Plain{}, mixture}, Linear{.model_dim = dim, .output_dim = 3}});
  expect_no_memory("PerToken", PerToken{3, Residual{update::Nesterov{}, WithShared{mixture, mlp}}});
  const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = 4}};
  expect_no_memory("Block",
                   Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}},
                               Residual{update::HeavyBall{}, Mixture{gate, mlp}}},
                         2});
  const RelativeAttention attention{.model_dim = dim, .heads = 2, .window = 20};
  const VisionSizes images{.side = 6, .patch = 3, .model_dim = dim, .heads = 2, .depth = 2};
  expect_no_memory("vision_transformer", vmoe_every_2<vision::Reference>(images, update::Robust{}, mixture, mlp), 24);
  expect_no_memory(
      "reference_layer",
      RelativeKeys{20, dim / 2, Stack{reference_layer(attention, update::HeavyBall{}, Dropout{0.1, mixture}), 2}});
}

#endif
