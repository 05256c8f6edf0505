#include "gatefold/gate/count_experts.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"

using namespace gatefold;

TEST_CASE("count_experts: reads a member or a function of the scores") {
  struct Option {
    Index experts = 5;
  };
  struct Function {
    Index experts() const { return 7; }
  };
  CHECK(count_experts(Option{}) == 5);
  CHECK(count_experts(Function{}) == 7);
}

TEST_CASE("active_experts: counts the picks of an item, at most all") {
  CHECK(active_experts(TopK{.k = 3}, 8) == 3);
  CHECK(active_experts(TopK{.k = 3}, 2) == 2);
  CHECK(active_experts(NoisyTop1<>{}, 8) == 1);
  CHECK(active_experts(Capacity{TopK{.k = 2}}, 8) == 2);
  CHECK(active_experts(Capacity{NoisyTop1<>{}}, 8) == 1);
  CHECK(active_experts(ExpertChoice{.factor = 2}, 8) == 2);
  CHECK(active_experts(ExpertChoice{.factor = 1.2}, 8) == 2);
  CHECK(active_experts(ExpertChoice{.factor = 20}, 8) == 8);
  CHECK(active_experts(Dense{}, 8) == 8);
  CHECK(active_experts(SoftMoe{}, 8) == 8);
  CHECK(active_experts(HashGate{.k = 2}, 8) == 2);
  CHECK(active_experts(SigmoidTopK{.selection = {.k = 4}}, 8) == 4);
}

TEST_CASE("ActiveExperts: an empty type takes no memory in parameters") {
  static_assert(std::is_empty_v<ActiveExperts<Cpu>>);
  using Gate = Params<SoftmaxTopK, float, Cpu>;
  using Expert = Params<Linear, float, Cpu>;
  static_assert(sizeof(Params<Mixture<SoftmaxTopK, Linear>, float, Cpu>) == sizeof(Gate) + sizeof(Expert));
}
