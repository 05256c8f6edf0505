#include "gatefold/train/parameter_group.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/optim/adamw.hpp"
#include "support/allocations.hpp"

using namespace gatefold;

namespace {

struct Leaf {
  Tensor<float, 2, Cpu> weight;
  Tensor<float, 1, Cpu> bias;
  GATEFOLD_PACK(weight, bias)
};
/// A pack with a vector of packs and a tensor.
struct Model {
  std::vector<Leaf> layers;
  Tensor<float, 2, Cpu> head;
  GATEFOLD_PACK(layers, head)
};
Model model(std::uint64_t seed) {
  Cpu::Context ctx(1);
  Model m;
  for (int i = 0; i < 3; ++i) m.layers.push_back({Tensor<float, 2, Cpu>(4, 3), Tensor<float, 1, Cpu>(3)});
  m.head.resize(3, 2);
  for_each_tensor([&](const Name&, auto& t) { fill_normal(ctx, Seed{seed++}, 1, t); }, m);
  return m;
}
bool is_weight(const Name& name) { return name.part == "weight"; }
std::vector<std::vector<float>> values(const Model& m) {
  std::vector<std::vector<float>> all;
  for_each_tensor([&](const Name&, const auto& t) { all.emplace_back(t.data(), t.data() + t.size()); }, m);
  return all;
}

}  // namespace

TEST_CASE("ParameterGroup: only() empties the tensors outside the group") {
  Model m = model(1);
  const auto before = values(m);
  ParameterGroup weights(m, is_weight);
  CHECK(weights.count() == 3 * 12);
  const Index seen = weights.only(
      [](Model& p) {
        for (const Leaf& leaf : p.layers) CHECK((leaf.weight.size() == 12 && leaf.bias.size() == 0));
        CHECK(p.head.size() == 0);
        return count_values(p);
      },
      m);
  CHECK(seen == weights.count());
  CHECK(values(m) == before);
}

TEST_CASE("ParameterGroup: an optimizer steps only the group") {
  Cpu::Context ctx(1);
  const optim::AdamW adam{.lr = 0.1, .decay = 0.1};
  Model p = model(1), g = model(50), reference = model(1), same = model(50);
  const auto before = values(p);
  ParameterGroup weights(p, is_weight);
  auto state = weights.only([&](Model& part) { return adam.begin(ctx, part); }, p);
  CHECK(count_values(state.m) == weights.count());  // the rest has no moments
  for (int t = 0; t < 3; ++t)
    weights.only([&](Model& part, Model& grads) { adam.step(ctx, part, grads, state); }, p, g);
  auto whole = adam.begin(ctx, reference);
  for (int t = 0; t < 3; ++t) adam.step(ctx, reference, same, whole);
  const auto after = values(p), expected = values(reference);
  for (std::size_t i = 0; i < after.size(); ++i)
    CHECK(after[i] == (i < 6 && i % 2 == 0 ? expected[i] : before[i]));  // the weights are at 0, 2, 4
}

TEST_CASE("ParameterGroup: a pack is complete again after an exception") {
  Model p = model(1), g = model(2);
  const auto before = values(p), gradients = values(g);
  ParameterGroup weights(p, is_weight);
  CHECK_THROWS_WITH_AS(weights.only([](Model&, Model&) { throw std::runtime_error("no"); }, p, g), "no",
                       std::runtime_error);
  CHECK(values(p) == before);
  CHECK(values(g) == gradients);
}

TEST_CASE("ParameterGroup: a group may contain no tensor or every tensor") {
  Model p = model(1);
  ParameterGroup none(p, [](const Name&) { return false; }), all(p, [](const Name&) { return true; });
  CHECK(none.count() == 0);
  none.only([](Model& part) { CHECK(count_values(part) == 0); }, p);
  CHECK(all.count() == count_values(p));
  all.only([&](Model& part) { CHECK(count_values(part) == all.count()); }, p);
}

TEST_CASE("ParameterGroup: a default-constructed group throws") {
  Model p = model(1);
  const auto before = values(p);
  ParameterGroup<Model> empty;
  CHECK_THROWS_WITH_AS(empty.only([](Model&) {}, p),
                       "ParameterGroup.only: group: expected a group made from a pack (for the state of an optimizer, "
                       "begin() makes it), got an empty group",
                       ArgumentError);
  CHECK(values(p) == before);
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("ParameterGroup: after the first call nothing allocates") {
  Model p = model(1), g = model(2);
  ParameterGroup weights(p, is_weight);
  const auto call = [&] { weights.only([](Model& a, Model& b) { CHECK(a.layers.size() == b.layers.size()); }, p, g); };
  call();
  const int before = support::allocations;
  int during = 0;
  weights.only([&](Model&, Model&) { during = support::allocations; }, p, g);
  CHECK(before > 0);
  CHECK(during == before);
}
#endif
