#include "measure.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <gatefold/papers/routed_trainer.hpp>
#include <gatefold/papers/signal_mixture.hpp>
#include <vector>

using namespace gatefold;
using namespace studies::expert_count;

namespace {

struct Case {
  Cpu::Context ctx{1};
  SignalMixture law = SignalMixture::expert_count(4);
  Signals signals = law.signals<float, Cpu>(ctx, Seed{1});
  // 1500 items, so that cluster_errors() computes them in two parts.
  Sample sample = law.draw<float, Cpu>(ctx, signals, Seed{2}, 1500);
};

}  // namespace

TEST_CASE("cluster_errors: equals loops over items with y f <= 0") {
  Case c;
  const PatchCnn<Identity> expert{.model_dim = kDim, .patches = 4, .filters = 1, .initial = Initial::zero()};
  const LinearScores scores{.model_dim = kDim, .experts = 3, .length = 4, .bias = false, .initial = Initial::zero()};
  RoutedTrainer trainer{c.ctx, Mixture{ComposedGate<LinearScores, Independent, NoisyTop1<>>{.scores = scores}, expert},
                        Logistic{}, Seed{3}};
  auto& weight = trainer.params.expert.weight;
  REQUIRE(weight.size() == 3 * kDim);
  // Expert 0 has learned cluster 0. Expert 1 has learned cluster 1 and a little of cluster 2. Expert 2 has learned
  // nothing.
  for (Index j = 0; j < kDim; ++j) {
    weight.data()[j] = c.signals.feature(0, j);
    weight.data()[kDim + j] = c.signals.feature(1, j) + c.signals.feature(2, j) / 4;
    weight.data()[2 * kDim + j] = 0;
  }
  const Matrix found = cluster_errors(c.ctx, trainer.mixture, trainer.params, c.sample);
  REQUIRE(found.size() == 3);
  for (std::size_t m = 0; m < 3; ++m) {
    std::vector<double> wrong(kClusters), count(kClusters);
    for (Index n = 0; n < 1500; ++n) {
      double f = 0;
      for (Index i = 0; i < 4 * kDim; ++i)
        f += double(weight.data()[static_cast<Index>(m) * kDim + i % kDim]) * double(c.sample.x(n, i));
      const auto k = static_cast<std::size_t>(c.sample.cluster(n));
      wrong[k] += double(c.sample.target(n, 0)) * f > 0 ? 0 : 1;
      ++count[k];
    }
    for (std::size_t k = 0; k < kClusters; ++k) {
      CAPTURE(m);
      CAPTURE(k);
      CHECK(found[m][k] == doctest::Approx(wrong[k] / count[k]).epsilon(1e-12));
    }
  }
  for (const double error : found[2]) CHECK(error == 1);
  CHECK(found[0][0] < found[0][1]);
}

TEST_CASE("strongest: returns the signal with the largest single product") {
  Case c;
  Tensor<float, 4, Cpu> weight(3, 2, kDim, 4);  // [M, P, d, J]
  for (Index i = 0; i < weight.size(); ++i) weight.data()[i] = 0;
  const auto put = [&](Index m, Index p, Index j, Index k, float size) {
    for (Index i = 0; i < kDim; ++i) weight(m, p, i, j) += size * c.signals.feature(k, i);
  };
  put(0, 0, 0, 1, 2);
  put(0, 1, 2, 2, 3);
  put(1, 0, 1, 0, -5);  // negative, so not the largest product
  put(1, 1, 3, 3, 0.5);
  put(2, 0, 0, 1, 2);  // the largest product decides, not a sum over filters
  put(2, 0, 1, 1, 2);
  put(2, 1, 1, 1, 2);
  put(2, 0, 3, 0, 3);
  CHECK(strongest(c.ctx, weight.view(), c.signals) == std::vector<Index>{2, 3, 0});
}

TEST_CASE("accuracy, right: output 0 is wrong, NaN gives NaN") {
  Tensor<float, 2, Cpu> output(5, 1), target(5, 1);
  Tensor<Index, 1, Cpu> cluster(5);
  const float outputs[]{2, -1, 0, -3, 4}, targets[]{1, 1, 1, -1, -1};
  const Index clusters[]{0, 0, 2, 2, 3};
  for (Index n = 0; n < 5; ++n) {
    output(n, 0) = outputs[n];
    target(n, 0) = targets[n];
    cluster(n) = clusters[n];
  }
  const std::vector<double> hits = right(output.view(), target.view());
  CHECK(hits == std::vector<double>{1, 0, 0, 1, 0});  // 0 is an error
  const Accuracy a = accuracy(hits, cluster.view());
  CHECK(a.all == doctest::Approx(40).epsilon(1e-13));
  REQUIRE(a.cluster.size() == 4);
  CHECK((a.cluster[0] == 50 && std::isnan(a.cluster[1]) && a.cluster[2] == 50 && a.cluster[3] == 0));
  output(4, 0) = std::nanf("");  // NaN is neither right nor wrong, so shares are NaN
  const Accuracy lost = accuracy(right(output.view(), target.view()), cluster.view());
  CHECK((std::isnan(lost.all) && lost.cluster[0] == 50 && std::isnan(lost.cluster[3])));
}

TEST_CASE("cluster_errors, shares: return NaN for a cluster without items") {
  Case c;
  const Sample few = c.law.draw<float, Cpu>(c.ctx, c.signals, Seed{2}, 3);
  const PatchCnn<Identity> expert{.model_dim = kDim, .patches = 4, .filters = 1};
  const LinearScores scores{.model_dim = kDim, .experts = 2, .length = 4, .bias = false, .initial = Initial::zero()};
  RoutedTrainer trainer{c.ctx, Mixture{ComposedGate<LinearScores, Independent, NoisyTop1<>>{.scores = scores}, expert},
                        Logistic{}, Seed{3}};
  trainer.evaluate(few.x, few.target, {});
  const Matrix errors = cluster_errors(c.ctx, trainer.mixture, trainer.params, few),
               share = shares(metric::routing_table<float, Cpu>(c.ctx, trainer.saved.plan, few.cluster, kClusters));
  int without = 0;
  for (std::size_t k = 0; k < kClusters; ++k) {
    const auto* const end = few.cluster.data() + 3;
    const bool none = std::find(few.cluster.data(), end, static_cast<Index>(k)) == end;
    without += none;
    for (std::size_t m = 0; m < 2; ++m) CHECK((std::isnan(errors[m][k]) == none && std::isnan(share[k][m]) == none));
  }
  CHECK(without > 0);
}
