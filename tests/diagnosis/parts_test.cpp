#include "gatefold/diagnosis/parts.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/normed_point.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/recompute.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/skip.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/update/plain.hpp"

// The tests in compile_fail/ check the error messages, and the results for parts that do not fit.
using namespace gatefold;

namespace {

using Experts = Mixture<SoftmaxTopK, Linear>;
using Layer = Residual<update::Plain, Experts>;

template <class L>
constexpr bool fit() {
  return detail_::policy::parts_fit<L, float, Cpu>();
}

}  // namespace

TEST_CASE("Parts: every composition accepts parts that fit") {
  CHECK(fit<Experts>());
  CHECK(fit<Layer>());
  CHECK(fit<OneExpert<Linear>>());
  CHECK(fit<NoResidual<Experts>>());
  CHECK(fit<PreNorm<LayerNorm, Experts>>());
  CHECK(fit<PostNorm<Layer, LayerNorm>>());
  CHECK(fit<NormedPoint<LayerNorm, Layer>>());
  CHECK(fit<Block<Residual<update::Plain, Attention>, Layer>>());
  CHECK(fit<WithShared<Experts, Linear>>());
  CHECK(fit<Dropout<Experts>>());
  CHECK(fit<PerToken<Linear>>());
  CHECK(fit<Stack<Layer>>());
  CHECK(fit<Skip<Layer>>());
  CHECK(fit<Recompute<Layer>>());
  CHECK(fit<Chain<Embedding, Layer, Linear>>());
}

TEST_CASE("Parts: deduction gives the type of each composition") {
  const Linear expert{.model_dim = 4};
  const Experts experts{{.scores = {.experts = 2}}, expert};
  CHECK(std::is_same_v<decltype(Mixture{SoftmaxTopK{}, expert}), Experts>);
  CHECK(std::is_same_v<decltype(Residual{update::Plain{}, experts}), Layer>);
  CHECK(std::is_same_v<decltype(WithShared{experts, expert, 0.5}), WithShared<Experts, Linear>>);
  CHECK(std::is_same_v<decltype(Dropout{0.1, experts}), Dropout<Experts>>);
  CHECK(std::is_same_v<decltype(PerToken{3, expert}), PerToken<Linear>>);
  CHECK(std::is_same_v<decltype(Stack{experts, 2}), Stack<Experts>>);
  CHECK(std::is_same_v<decltype(Recompute{experts, false}), Recompute<Experts>>);
}
