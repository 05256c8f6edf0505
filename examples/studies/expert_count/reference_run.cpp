#include "reference_run.hpp"

#include <algorithm>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/routed_trainer.hpp>
#include <gatefold/papers/signal_mixture.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <limits>
#include <utility>

#include "../support/routing_measures.hpp"
#include "measure.hpp"
#include "twice_softmax.hpp"

namespace studies::expert_count {
namespace {

struct Labelled {
  Sample sample;
  Tensor<Index, 1, Cpu> label;  // [N] 0 or 1

  double accuracy(Cpu::Context& ctx, View<const float, 2, Cpu> y) const {
    return 100 * metric::accuracy(ctx, y, label);
  }
};
struct Data {
  Labelled train, test;
};

Labelled labelled(Sample sample) {
  Labelled set{std::move(sample), {}};
  set.label.resize(set.sample.x.extent(0));
  for (Index n = 0; n < set.label.size(); ++n) set.label(n) = set.sample.target(n, 0) > 0 ? 1 : 0;
  return set;
}
Data draw(Cpu::Context& ctx, const ReferenceRun& r) {
  const SignalMixture law = SignalMixture::reference(r.setting);
  const Seed seed{r.data == 0 ? r.seed : r.data};
  const Signals signals = law.signals<float, Cpu>(ctx, seed.fork(0));
  return {labelled(law.draw<float, Cpu>(ctx, signals, seed.fork(1), r.train)),
          labelled(law.draw<float, Cpu>(ctx, signals, seed.fork(2), r.test))};
}

template <class ActT>
Json mixture(const ReferenceRun& r, const Report& report) {
  Cpu::Context ctx(1);
  const Data data = draw(ctx, r);
  const Seed start{r.start == 0 ? r.seed : r.start}, draws{r.noise == 0 ? r.seed : r.noise};
  using Gate = ComposedGate<LinearScores, Independent, NoisyTop1<>>;
  const Gate gate{.scores = {.model_dim = kDim, .experts = 8, .length = 4, .bias = false, .initial = Initial::zero()},
                  .mixing = {},
                  .selection = NoisyTop1<>::reference()};
  RoutedTrainer trainer{ctx, Mixture{gate, PatchCnn<ActT>::reference()}, TwiceSoftmax{}, start.fork(3), true};
  auto of_experts = optim::NormalizedGd::reference();
  of_experts.lr = 1e-3;
  const optim::Sgd of_router{.lr = 0.1};
  auto expert_state = of_experts.begin(ctx, trainer.params.expert);
  auto router_state = of_router.begin(ctx, trainer.params.gate);
  const auto noise = [&](std::uint64_t stream, Index t) {
    typename decltype(trainer)::Extra extra;
    extra.selection.random = Random{draws.fork(stream), static_cast<std::uint64_t>(t)};
    return extra;
  };

  double least = std::numeric_limits<double>::infinity(), loss = 0, entropy = 0;
  Json curve{{"iteration", Json::array()}, {"loss", Json::array()}, {"entropy", Json::array()}}, log;
  Index epoch = 0;
  for (; epoch < r.epochs; ++epoch) {
    loss = trainer.gradients(data.train.sample.x, data.train.label, noise(4, epoch)).router;
    entropy = metric::dispatch_entropy<float, Cpu>(ctx, trainer.saved.plan, data.train.sample.cluster, kClusters);
    if (epoch % 10 == 0) {
      curve["iteration"].push_back(epoch);
      curve["loss"].push_back(loss);
      curve["entropy"].push_back(entropy);
      RoutingMeasures measures;
      measures.add(ctx, trainer.saved, trainer.output());
      measures.append(log);
      report(static_cast<double>(epoch) / static_cast<double>(r.epochs));
    }
    if (loss <= least) {
      least = loss;
    } else if (loss > least + 0.02 || loss <= 0.314) {
      break;
    }
    of_experts.step(ctx, trainer.params.expert, trainer.grads.expert, expert_state);
    of_router.step(ctx, trainer.params.gate, trainer.grads.gate, router_state);
  }
  trainer.evaluate(data.test.sample.x, data.test.label, noise(5, 0));
  return {{"accuracy", data.test.accuracy(ctx, trainer.output())},
          {"entropy", entropy},
          {"loss", loss},
          {"epochs", epoch},
          {"curve", curve},
          {"log", log}};
}

template <class ActT>
Json single(const ReferenceRun& r, double lr, const Report& report) {
  Cpu::Context ctx(1);
  const Data data = draw(ctx, r);
  const PatchCnn<ActT> network{
      .model_dim = kDim, .patches = 4, .filters = 80, .outputs = 2, .bias = true, .initial = {}};
  Trainer trainer{ctx, OneExpert{network}, CrossEntropy{}, AdamL2{.lr = lr, .l2 = 5e-4}, Seed{r.seed}.fork(3)};
  auto before = zeros_like(ctx, trainer.params);
  double least = std::numeric_limits<double>::infinity(), loss = 0;
  Index epoch = 0;
  for (; epoch < r.epochs; ++epoch) {
    copy_pack(ctx, trainer.params, before);
    loss = trainer.step(data.train.sample.x, data.train.label);
    if (epoch % 10 == 0) report(static_cast<double>(epoch) / static_cast<double>(r.epochs));
    if (loss <= least) {
      least = loss;
    } else if (epoch > 500 && loss > least + 0.02) {
      copy_pack(ctx, before, trainer.params);  // restores the parameters before this step, like Chen et al.
      break;
    }
  }
  trainer.evaluate(data.test.sample.x, data.test.label);
  return {{"accuracy", data.test.accuracy(ctx, trainer.output())}, {"loss", loss}, {"epochs", epoch}};
}

}  // namespace

Json train_reference(const ReferenceRun& r, const Report& report) {
  return r.linear ? mixture<Identity>(r, report) : mixture<Cubic>(r, report);
}
Json train_single(const ReferenceRun& r, const Report& report) {
  return r.linear ? single<Identity>(r, 0.003, report) : single<Cubic>(r, 0.01, report);
}

}  // namespace studies::expert_count
