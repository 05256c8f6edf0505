#include "gatefold/distributed/gate_needs.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"
#include "support/larger.hpp"

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

TEST_CASE("gate_needs: recognises gates that need logits of other shards") {
  CHECK(seen<SoftmaxTopK> == Sees::logits);
  CHECK(seen<ComposedGate<CosineScores, Independent, ExpertChoice, Balance>> == Sees::logits);
  CHECK(seen<ComposedGate<Scores, Independent, Capacity<TopK>>> == Sees::logits);
  CHECK(seen<ComposedGate<Scores, Independent, NoisyTop1<>>> == Sees::logits);
}

TEST_CASE("gate_needs: recognises gates that need mixed values of other shards") {
  CHECK(seen<ComposedGate<Scores, TokenSimilarity, TopK>> == Sees::mixed);
  CHECK(seen<AttentionAware<SoftmaxTopK>> == Sees::mixed);
}

TEST_CASE("gate_needs: recognises gates that need items of other shards") {
  CHECK(seen<ComposedGate<Scores, Independent, NoisyTopK<>>> == Sees::items);  // noise scales with x
  CHECK(seen<ComposedGate<Scores, Independent, SigmoidBias>> == Sees::items);  // the selection has parameters
  CHECK(seen<ComposedGate<Jitter<Scores>, TokenSimilarity, TopK>> == Sees::items);
  CHECK(seen<ComposedGate<Jitter<Scores>, Independent, TopK>> == Sees::items);  // random numbers depend on the item
  CHECK(seen<OwnGate> == Sees::items);
}

TEST_CASE("gate_needs: recognises gates that need no other shard") {
  CHECK(seen<HashGate> == Sees::own);
  CHECK(seen<SoftMoe> == Sees::own);
}

TEST_CASE("MixedRows: joins and splits rows and their adjoints") {
  using Rows = dist::MixedRows<double, Cpu>;
  constexpr Index items = 3, experts = 2;
  Cpu::Context ctx(1);
  Tensor<double, 2, Cpu> part(items, experts), rows(items, Rows::parts * experts);
  for (const auto p : {Rows::logits, Rows::rank, Rows::probabilities}) {
    for (Index n = 0; n < items; ++n)
      for (Index e = 0; e < experts; ++e) part(n, e) = static_cast<double>(100 * p + 10 * n + e);
    Rows::put(ctx, part.view(), p, rows.view(), false);
  }
  for (Index n = 0; n < items; ++n)
    for (Index c = 0; c < rows.extent(1); ++c)
      CHECK(rows(n, c) == static_cast<double>(100 * (c / experts) + 10 * n + c % experts));

  Tensor<double, 2, Cpu> z(items, experts), q(items, experts);
  const dist::GivenMixing mixing;
  dist::GivenMixing::Saved<double, Cpu> saved;
  dist::MixedScores{experts}.forward<double, Cpu>(ctx, {}, rows, z);
  mixing.forward<double, Cpu>(ctx, {}, rows, z, q, saved, {});
  const auto rank = mixing.rank<double, Cpu>(z, saved);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) {
      CHECK(z(n, e) == static_cast<double>(10 * n + e));
      CHECK(rank(n, e) == static_cast<double>(100 + 10 * n + e));
      CHECK(q(n, e) == static_cast<double>(200 + 10 * n + e));
    }

  // Each adjoint is added to its own part of dx.
  const Tensor<double, 2, Cpu> drank = constant_tensor<double>(ctx, 3, items, experts),
                               dq = constant_tensor<double>(ctx, 5, items, experts),
                               dlogits = constant_tensor<double>(ctx, 7, items, experts);
  Tensor<double, 2, Cpu> dz = constant_tensor<double>(ctx, 9, items, experts),
                         dx = constant_tensor<double>(ctx, 1, items, Rows::parts * experts);
  Nothing<double, Cpu> none;
  mixing.backward<double, Cpu>(ctx, {}, rows, z, q, saved, drank, dq, dz, dx, none, {}, none);
  dist::MixedScores{experts}.backward<double, Cpu>(ctx, {}, rows, dlogits, dx, none);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) {
      CHECK(dz(n, e) == 0);
      CHECK(dx(n, e) == 8);
      CHECK(dx(n, experts + e) == 4);
      CHECK(dx(n, 2 * experts + e) == 6);
    }
}

TEST_CASE("GivenMixing: padding gets the same probability for every expert") {
  constexpr Index items = 2, experts = 4;
  Cpu::Context ctx(1);
  const auto rows = constant_tensor<double>(ctx, 0, items, dist::MixedRows<double, Cpu>::parts * experts);
  Tensor<double, 2, Cpu> z(items, experts), q(items, experts);
  dist::GivenMixing::Saved<double, Cpu> saved;
  const std::vector<double> valid{1, 0};
  dist::GivenMixing{}.forward<double, Cpu>(ctx, {}, rows, z, q, saved, {valid});
  for (Index e = 0; e < experts; ++e) {
    CHECK(q(0, e) == 0);
    CHECK(q(1, e) == 0.25);
  }
}

TEST_CASE("GivenScores: returns the items as logits; backward adds adjoints") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3), dz = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  Tensor<double, 2, Cpu> z(4, 3), dx = constant_tensor<double>(ctx, 1, 4, 3);
  Nothing<double, Cpu> none;
  dist::GivenScores{3}.forward<double, Cpu>(ctx, {}, x, z);
  dist::GivenScores{3}.backward<double, Cpu>(ctx, {}, x, dz, dx, none);
  for (Index i = 0; i < x.size(); ++i) {
    CHECK(z.data()[i] == x.data()[i]);
    CHECK(dx.data()[i] == 1 + dz.data()[i]);
  }
}

namespace {

/// Writes the sum of row n to sum[n].
struct RowSum {
  double* sum;
  template <class Lanes>
  void operator()(const Lanes&, Index n, double* row) const {
    sum[n] = row[0] + row[1] + row[2];
  }
};

}  // namespace

TEST_CASE("GivenScores: passes logits row by row, including infinities") {
  Cpu::Context ctx(1);
  auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 2, 3);
  x(1, 0) = -std::numeric_limits<double>::infinity();
  Tensor<double, 2, Cpu> z(2, 3);
  for (const bool kept : {true, false}) {
    double sum[2] = {};
    dist::GivenRows{{3}}.forward_rows<double, Cpu>(ctx, {}, x, kept ? z.view() : View<double, 2, Cpu>(nullptr, 2, 3),
                                                   RowSum{sum});
    CHECK(sum[0] == x(0, 0) + x(0, 1) + x(0, 2));
    CHECK(sum[1] == x(1, 0));
  }
  for (Index i = 0; i < x.size(); ++i) CHECK(z.data()[i] == x.data()[i]);
}

namespace {

constexpr Index items = 12, dim = 5, experts = 4, steps = 3;

template <class GateT>
constexpr bool is_enough = dist::local::is_enough<GateT, Cpu>();

/// A user-defined gate.
struct Own : SoftmaxTopK {};

auto model_of(const auto& gate) {
  return Stack{Residual{update::HeavyBall{}, Mixture{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}}}, 2};
}
/// Returns losses, then parameters.
std::vector<double> values_of(auto& trainer, const auto& part) {
  std::vector<double> all;
  for (Index i = 0; i < steps; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const auto x = uniform_tensor<double>(trainer.context(), Seed{10 + number}, 1, items, dim),
               y = uniform_tensor<double>(trainer.context(), Seed{90 + number}, 1, items, dim);
    all.push_back(trainer.step(x.view().rows(part.first, part.count), y.view().rows(part.first, part.count)));
  }
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); },
                  trainer.params);
  return all;
}

}  // namespace

TEST_CASE("LocalGate: detects gates that do not need the whole batch") {
  CHECK(is_enough<SoftmaxTopK>);
  CHECK(is_enough<SoftmaxDense>);
  CHECK(is_enough<SigmoidTopK>);
  CHECK(is_enough<XMoe>);
  CHECK(is_enough<SmoeDropout>);
  CHECK(is_enough<SoftMoe>);
  CHECK(is_enough<HashGate>);
  CHECK(is_enough<WeightOnInput<SoftmaxTopK>>);
  CHECK(is_enough<WeightOnInput<HashGate>>);
  CHECK(is_enough<SigmoidOnInput>);
  CHECK_FALSE(is_enough<WeightOnInput<VMoe>>);
  CHECK_FALSE(is_enough<WithAuxiliary<SoftmaxTopK, ZLoss>>);
  CHECK_FALSE(is_enough<SoftmaxNoisyTop1>);
  CHECK_FALSE(is_enough<SoftmaxExpertChoice>);
  CHECK_FALSE(is_enough<VMoe>);
  CHECK_FALSE(is_enough<Switch>);
  CHECK_FALSE(is_enough<ComposedGate<Jitter<LinearScores>, Independent, TopK>>);
  CHECK_FALSE(is_enough<ComposedGate<LinearScores, Independent, Capacity<TopK>>>);
  CHECK_FALSE(is_enough<SimilarityAware<SoftmaxTopK>>);
  CHECK_FALSE(is_enough<Own>);
}

TEST_CASE("LocalGate: a replicated mixture trains as in one process") {
  const auto check = [](const auto& gate) {
    Cpu::Context ctx(1);
    Trainer alone{ctx, model_of(gate), MeanSquaredError{}, optim::AdamW{.lr = 0.02}, Seed{3}, Element<double>{}};
    const auto expected = values_of(alone, dist::Range{0, items});
    for (const Index shards : {2, 3}) {
      dist::Alone world;
      std::mutex mutex;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context of_shard(1);
        Trainer trainer{of_shard,
                        model_of(gate),
                        dist::LossOfShards{MeanSquaredError{}, &shard},
                        dist::DataParallel{optim::AdamW{.lr = 0.02}, &shard},
                        Seed{3},
                        Element<double>{}};
        const auto found = values_of(trainer, shard.part_of(items));
        const std::lock_guard lock(mutex);
        REQUIRE(found.size() == expected.size());
        double most = 0;
        for (std::size_t i = 0; i < found.size(); ++i) most = support::larger(most, std::abs(found[i] - expected[i]));
        CHECK(most < 1e-11);
      });
    }
  };
  check(SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}});
  check(SigmoidTopK{.scores = {.experts = experts}, .selection = {.k = 2}});
  check(SoftmaxDense{.scores = {.experts = experts}});
}
