#include "gatefold/tensor/name_patterns.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace gatefold;

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
