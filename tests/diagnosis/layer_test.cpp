#include "gatefold/diagnosis/layer.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"

// The tests in compile_fail/ check the error messages.
using namespace gatefold;
namespace policy = gatefold::detail_::policy;

namespace {

using Experts = Mixture<SoftmaxTopK, Linear>;
using Layer = Residual<update::Plain, Experts>;

}  // namespace

TEST_CASE("Layer: concepts distinguish layers, branches and other types") {
  CHECK(policy::Layer<Stack<Layer>, float, Cpu>);
  CHECK(policy::Layer<Layer, double, Cpu>);
  CHECK(policy::Branch<Experts, float, Cpu>);
  CHECK(policy::Branch<OneExpert<LayerNorm>, float, Cpu>);
  CHECK_FALSE(policy::Layer<Experts, float, Cpu>);
  CHECK_FALSE(policy::Branch<LayerNorm, float, Cpu>);
  CHECK_FALSE(policy::Branch<SoftmaxTopK, float, Cpu>);
  CHECK_FALSE(policy::Layer<update::HeavyBall, float, Cpu>);
}

TEST_CASE("check functions: accept types that meet their concept") {
  CHECK(policy::check_layer<Layer, float, Cpu>());
  CHECK(policy::check_branch<Experts, float, Cpu>());
  CHECK(policy::check_bank<Linear, float, Cpu>());
  CHECK(policy::check_norm<LayerNorm, float, Cpu>());
  CHECK(policy::check_norm<OneExpert<LayerNorm>, float, Cpu>());
  CHECK(policy::check_reads_rows<Layer, float, Cpu>());
  CHECK(policy::check_items<Layer, float, Cpu>());
  CHECK(policy::check_items<Embedding, float, Cpu>());
  CHECK(policy::reads_ids<Embedding, float, Cpu>);
  CHECK_FALSE(policy::reads_ids<Layer, float, Cpu>);
}

TEST_CASE("as_layer: wraps branches in NoResidual and experts in OneExpert") {
  CHECK(std::is_same_v<AsLayer<Layer, float, Cpu>, Layer>);
  CHECK(std::is_same_v<AsLayer<Experts, float, Cpu>, NoResidual<Experts>>);
  CHECK(std::is_same_v<AsLayer<Linear, float, Cpu>, NoResidual<OneExpert<Linear>>>);
  CHECK(as_layer<float, Cpu>(Linear{.model_dim = 3, .output_dim = 2}).out_dim() == 2);
  CHECK(policy::fits<AsLayer<Layer, float, Cpu>>);
  CHECK_FALSE(policy::fits<detail_::lookup::Refused>);
}

TEST_CASE("as_branch: wraps experts in OneExpert") {
  CHECK(std::is_same_v<AsBranch<Experts, float, Cpu>, Experts>);
  CHECK(std::is_same_v<AsBranch<LayerNorm, float, Cpu>, OneExpert<LayerNorm>>);
  CHECK(as_branch<float, Cpu>(LayerNorm{.model_dim = 3}).in_dim() == 3);
}
