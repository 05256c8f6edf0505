#include "gatefold/distributed/gate_needs.hpp"

#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

using dist::global::Sees;
using Scores = LinearScores;
template <class G>
constexpr Sees seen = dist::global::sees<G, float, Cpu>();

/// A gate that is not a ComposedGate.
struct OwnGate {
  template <class T, class B>
  using Plan = SparsePlan<T, B>;
};

}  // namespace

TEST_CASE("gate_needs: gates that read logits of other shards") {
  CHECK(seen<SoftmaxTopK> == Sees::logits);
  CHECK(seen<ComposedGate<CosineScores, Independent, ExpertChoice, Balance>> == Sees::logits);
  CHECK(seen<ComposedGate<Scores, Independent, Capacity<TopK>>> == Sees::logits);
  CHECK(seen<ComposedGate<Scores, Independent, NoisyTop1<>>> == Sees::logits);
}

TEST_CASE("gate_needs: gates that read mixed values of other shards") {
  CHECK(seen<ComposedGate<Scores, TokenSimilarity, TopK>> == Sees::mixed);
  CHECK(seen<AttentionAware<SoftmaxTopK>> == Sees::mixed);
}

TEST_CASE("gate_needs: gates that read items of other shards") {
  CHECK(seen<ComposedGate<Scores, Independent, NoisyTopK<>>> == Sees::items);  // noise scales with x
  CHECK(seen<ComposedGate<Scores, Independent, SigmoidBias>> == Sees::items);  // the selection has parameters
  CHECK(seen<ComposedGate<Jitter<Scores>, TokenSimilarity, TopK>> == Sees::items);
  CHECK(seen<ComposedGate<Jitter<Scores>, Independent, TopK>> == Sees::items);  // random numbers depend on the item
  CHECK(seen<OwnGate> == Sees::items);
}

TEST_CASE("gate_needs: gates that need no other shard") {
  CHECK(seen<HashGate> == Sees::own);
  CHECK(seen<SoftMoe> == Sees::own);
}
