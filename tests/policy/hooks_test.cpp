#include "gatefold/policy/hooks.hpp"

#include <doctest/doctest.h>

#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

// tests/compile_fail/misfit_*.cpp tests members that do not fit.

TEST_CASE("hooks: find the optional members that a policy has") {
  using update::Adam, update::HeavyBall, update::Plain, update::SharpnessAware;
  static_assert(detail_::hook::rule::validate<HeavyBall, float, Cpu>() &&
                detail_::hook::rule::advance<HeavyBall, float, Cpu>());
  static_assert(!detail_::hook::rule::validate<Plain, float, Cpu>() &&
                !detail_::hook::rule::begin<Plain, float, Cpu>());
  static_assert(!detail_::hook::rule::advance<Adam, double, Cpu>() && detail_::hook::rule::begin<Adam, double, Cpu>());
  static_assert(detail_::hook::rule::evaluations<SharpnessAware>() == 2 &&
                detail_::hook::rule::evaluations<HeavyBall>() == 1);

  static_assert(detail_::hook::selection::rows<TopK, float, Cpu>() && detail_::hook::selection::complete_picks<TopK>());
  static_assert(!detail_::hook::selection::rows<SigmoidBias, float, Cpu>() &&
                !detail_::hook::selection::complete_picks<SigmoidBias>());
  static_assert(!detail_::hook::selection::picks_by_item<ExpertChoice>() &&
                detail_::hook::selection::picks_by_item<Dense>());
  static_assert(detail_::hook::selection::noisy<NoisyTopK<>, float, Cpu>() &&
                !detail_::hook::selection::noisy<TopK, float, Cpu>());
  static_assert(detail_::hook::selection::shows_noise<Capacity<NoisyTopK<>>>() &&
                !detail_::hook::selection::shows_noise<Capacity<TopK>>());
  static_assert(detail_::hook::mixing::rows<Independent, float, Cpu>() &&
                !detail_::hook::mixing::rows<TokenSimilarity, float, Cpu>());
  static_assert(detail_::hook::scores::forward_rows<LinearScores, float, Cpu>() &&
                !detail_::hook::scores::forward_rows<CosineScores, float, Cpu>());
  static_assert(detail_::hook::auxiliary::needs_noise<Load>() && !detail_::hook::auxiliary::needs_noise<Balance>());

  static_assert(detail_::hook::expert::infer<Mlp<Gelu>, float, Cpu>() &&
                detail_::hook::any::experts<Experts<Linear, Mlp<Gelu>>>());
  static_assert(detail_::hook::expert::weighted_backward<Mlp<Gelu>, float, Cpu>() &&
                !detail_::hook::expert::weighted_backward<Experts<Linear, Mlp<Gelu>>, float, Cpu>());
  static_assert(detail_::hook::expert::stores_slots<GatedMlp<Silu>>() &&
                detail_::hook::expert::stores_slots<HiddenDropout<Mlp<Gelu>>>() &&
                !detail_::hook::expert::stores_slots<Linear>());
  static_assert(detail_::hook::plan::slot_weights<SparsePlan<float, Cpu>, float, Cpu>() &&
                !detail_::hook::plan::slot_weights<DensePlan<float, Cpu>, float, Cpu>());
  static_assert(detail_::hook::any::items_adjoint_is_optional<PatchCnn<Cubic>>() &&
                !detail_::hook::any::experts<Linear>());
  static_assert(detail_::hook::branch::infer<Mixture<SoftmaxTopK, Linear>, float, Cpu>() &&
                !detail_::hook::branch::infer<Attention, float, Cpu>());
  using OnShards = dist::ExpertParallel<SoftmaxTopK, Linear, dist::Shard<dist::Alone>>;
  static_assert(detail_::hook::branch::forward_overlapping<OnShards, float, Cpu>() &&
                detail_::hook::branch::backward_overlapping<OnShards, float, Cpu>() &&
                !detail_::hook::branch::forward_overlapping<Mixture<SoftmaxTopK, Linear>, float, Cpu>());
  static_assert(detail_::hook::extra::with_valid<const Sequence<float, Cpu>, View<const float, 1, Cpu>>());
  CHECK(detail_::hook::optimizer::validate<optim::Sgd>());
}

TEST_CASE("hooks: nested types are the policy's, or Nothing") {
  static_assert(std::is_same_v<Params<Linear, float, Cpu>, Linear::Params<float, Cpu>>);
  static_assert(std::is_same_v<Carry<update::Plain, float, Cpu>, Nothing<float, Cpu>>);
  static_assert(std::is_same_v<Plan<SoftmaxTopK, double, Cpu>, SparsePlan<double, Cpu>>);
}
