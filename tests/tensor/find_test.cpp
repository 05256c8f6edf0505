#include "gatefold/tensor/find.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/tensor/table.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

template <class T, class B>
struct Leaf {
  Tensor<T, 2, B> weight{2, 3};
  Tensor<T, 1, B> bias{3};
  GATEFOLD_PACK(weight, bias)
};
template <class T, class B>
struct Tree {
  std::vector<Leaf<T, B>> layers{2};
  std::tuple<Leaf<T, B>, Leaf<T, B>> kinds{};
  Table<T, B> table{};
  Tensor<T, 3, B> experts{2, 2, 2};
  Tensor<Index, 1, B> count{1};
  GATEFOLD_PACK(layers, kinds, table, experts, count)
};
template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace

TEST_CASE("find: returns a named tensor with extents and elements") {
  Tree<double, Cpu> tree;
  tree.layers[1].weight(1, 2) = 5;
  auto weight = find(tree, "layers.1.weight");
  CHECK(weight.rank() == 2);
  CHECK(weight.extent(0) == 2);
  CHECK(weight.extent(1) == 3);
  CHECK(weight.size() == 6);
  CHECK(weight.data() == tree.layers[1].weight.data());
  CHECK(weight.view()(5) == 5);
  weight.data()[0] = 7;
  CHECK(tree.layers[1].weight(0, 0) == 7);
  CHECK(find(tree, "kinds.1.bias").data() == std::get<1>(tree.kinds).bias.data());
  CHECK(find(tree, "experts").rank() == 3);
}

TEST_CASE("find<Rank>: returns a view with the extents of the tensor") {
  Tree<float, Cpu> tree;
  const View<float, 3, Cpu> experts = find<3>(tree, "experts");
  experts(1, 0, 1) = 4;
  CHECK(tree.experts(1, 0, 1) == 4);
  CHECK(experts.extent(2) == 2);
  CHECK(message_of([&] { find<2>(tree, "experts"); }) == "find: experts: expected a tensor of rank 2, got rank 3");
}

TEST_CASE("find: elements of a const pack are const") {
  const Tree<float, Cpu> tree;
  auto bias = find(tree, "layers.0.bias");
  static_assert(std::is_same_v<decltype(bias.data()), const float*>);
  static_assert(std::is_same_v<decltype(find<1>(tree, "layers.0.bias")), View<const float, 1, Cpu>>);
  CHECK(bias.data() == tree.layers[0].bias.data());
}

TEST_CASE("find: a tensor keeps its stamp unless found for writing") {
  Cpu::Context ctx(1);
  Tree<float, Cpu> tree;
  tree.experts.copied_by(3);
  find(tree, "layers.0.bias");
  CHECK(tree.experts.is_copied_by(3));
  find(std::as_const(tree), "experts");
  CHECK(tree.experts.is_copied_by(3));
  find(tree, "experts");  // for writing
  CHECK(!tree.experts.is_copied_by(3));
}

TEST_CASE("find: an unknown name throws with the nearest names") {
  const Tree<float, Cpu> tree;
  const std::string begin = "find: name: expected the name of a tensor of the pack (nearest: ";
  CHECK(message_of([&] { find(tree, "layers.0.wieght"); }) ==
        begin + "layers.0.weight, layers.1.weight, layers.0.bias), got layers.0.wieght");
  CHECK(message_of([&] { find(tree, "1.bias"); }).starts_with(begin + "kinds.1.bias, layers.1.bias, "));
  CHECK(message_of([&] { find(tree, "params.experts"); }).find("(nearest: experts, ") != std::string::npos);
  CHECK(message_of([&] { find(tree, ""); }).ends_with("got \"\""));
  const std::tuple<Leaf<float, Cpu>> one{};
  CHECK(message_of([&] { find(one, "0.bia"); }) == begin + "0.bias, 0.weight), got 0.bia");
}

TEST_CASE("find: a tensor with another element type throws") {
  Tree<float, Cpu> tree;
  CHECK(message_of([&] { find(tree, "count"); }) ==
        "FlatTensor: tensor: expected elements of the same type as its pack, got another type");
}

TEST_CASE("edit_distance: counts the fewest insertions, deletions, replacements") {
  CHECK(detail_::pack::edit_distance("", "") == 0);
  CHECK(detail_::pack::edit_distance("", "abc") == 3);
  CHECK(detail_::pack::edit_distance("abc", "") == 3);
  CHECK(detail_::pack::edit_distance("kitten", "sitting") == 3);
  CHECK(detail_::pack::edit_distance("flaw", "lawn") == 2);
}

namespace {

const std::vector<std::string> names{"layers.0.rule.mu", "layers.0.branch.gate.scores", "layers.1.rule.mu",
                                     "layers.10.rule.mu"};

/// Returns the numbers of the selected names.
std::vector<int> selected(const std::vector<std::string>& patterns) {
  std::vector<bool> all(names.size());
  NamePatterns(patterns).select("here", names, all);
  std::vector<int> numbers;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i]) numbers.push_back(static_cast<int>(i));
  return numbers;
}

}  // namespace

TEST_CASE("NamePatterns: names, packs, * and ** select tensors") {
  using Numbers = std::vector<int>;
  CHECK(selected({}) == Numbers{});
  CHECK(selected({"layers.0.rule.mu"}) == Numbers{0});
  CHECK(selected({"layers.1"}) == Numbers{2});
  CHECK(selected({"layers.1*"}) == Numbers{2, 3});
  CHECK(selected({"layers.*.rule"}) == Numbers{0, 2, 3});
  CHECK(selected({"**.scores"}) == Numbers{1});
  CHECK(selected({"**"}) == Numbers{0, 1, 2, 3});
  CHECK(selected({"layers.**.mu", "layers.0"}) == Numbers{0, 1, 2, 3});
  CHECK(NamePatterns{}.empty());
  CHECK(!NamePatterns({"a"}).empty());
}

TEST_CASE("NamePatterns: a pattern without a tensor is an error") {
  for (const std::string pattern : {"layers.2", "rule", "layers.0.rule.mu.x", "layer", ""})
    CHECK_THROWS_AS(selected({"layers.0", pattern}), ArgumentError);
  CHECK_THROWS_WITH_AS(selected({"layers.0.rul"}),
                       "here: pattern: expected the name of a tensor or of a part, got \"layers.0.rul\"; the nearest "
                       "names: layers.0.rule, layers.1.rule, layers.10.rule",
                       ArgumentError);
}
