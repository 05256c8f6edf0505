#include "gatefold/policy/gradient_memory.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/pack.hpp"

using namespace gatefold;

namespace {

/// A policy's own pack that does not declare its gradients optional.
struct Plain {
  Tensor<float, 1, Cpu> weight;
  GATEFOLD_PACK(weight)
};
struct Optional {
  static constexpr bool gradient_is_optional = true;
  Tensor<float, 2, Cpu> weight;
  Table<float, Cpu> table;
  GATEFOLD_PACK(weight, table)
};
struct NotLearned {
  static constexpr bool learned = false, gradient_is_optional = true;
  Tensor<float, 1, Cpu> bias;
  Plain inside;
  GATEFOLD_PACK(bias, inside)
};
struct Adapts {
  static constexpr bool learned = false, gradient_is_optional = true;
  Tensor<float, 1, Cpu> count;
  GATEFOLD_PACK(count)
  void adapt(Cpu::Context&, const Adapts&) {}
};
struct Model {
  std::vector<Optional> layers;
  std::tuple<Plain, NotLearned> parts;
  Adapts adapts;
  GATEFOLD_PACK(layers, parts, adapts)
};
Model model() {
  Model m;
  m.layers.resize(2);
  for (Optional& layer : m.layers) {
    layer.weight.resize(2, 3);
    layer.table.resize(4, 2);
  }
  std::get<0>(m.parts).weight.resize(5);
  std::get<1>(m.parts).bias.resize(6);
  std::get<1>(m.parts).inside.weight.resize(7);
  m.adapts.count.resize(8);
  return m;
}
/// Returns the names of the tensors that are skipped.
std::vector<std::string> skipped(const std::vector<bool>& selected) {
  const Model params = model();
  Model grads;
  detail_::gradient_memory::shape(grads, params, detail_::gradient_memory::uses<Cpu::Context>(params), selected);
  std::vector<std::string> names;
  for_each_tensor(
      [&](const Name& name, const auto& g, const auto& p) {
        CHECK(g.size() == (g.is_skipped() ? 0 : p.size()));
        if (g.is_skipped()) names.push_back(name.str());
      },
      grads, params);
  expect_like("test", "grads", params, grads);
  return names;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("gradient_memory: the pack that lists a tensor determines its use") {
  const auto uses = detail_::gradient_memory::uses<Cpu::Context>(model());
  Names found;
  for (const auto& use : uses.of_tensors)
    found.push_back(std::string(use.optional ? "o" : "-") + (use.learned ? "l" : "-") + (use.adapts ? "a" : "-"));
  CHECK(found == Names{"ol-", "ol-", "ol-", "ol-", "-l-", "o--", "---", "o-a"});
  REQUIRE(uses.adapting.size() == 1);
  CHECK(uses.adapting[0] == std::pair<std::size_t, std::size_t>{7, 8});
}

TEST_CASE("gradient_memory: gradients that are never read are skipped") {
  CHECK(skipped(std::vector<bool>(8, false)) == Names{"parts.1.bias"});
  CHECK(skipped(std::vector<bool>(8, true)) == Names{"layers.0.weight", "layers.0.table", "layers.1.weight",
                                                     "layers.1.table", "parts.1.bias", "adapts.count"});
  CHECK(skipped({false, true, true, false, true, false, true, false}) ==
        Names{"layers.0.table", "layers.1.weight", "parts.1.bias"});
}
