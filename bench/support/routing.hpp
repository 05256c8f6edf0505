#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "layer.hpp"

/// Times the routing of a layer (gate, dispatch, combine), without the products of experts and scores.
namespace bench {

/// Runs only the gate of `run`, as inference does, and keeps the plan that it makes.
template <class RunT>
struct GateRun {
  RunT& run;
  void operator()() {
    const auto& mixture = run.layer.branch;
    const auto gate = with_model_dim(mixture.gate, mixture.in_dim());
    const auto& p = run.params.branch.gate;
    auto& saved = run.saved.branch;
    if constexpr (requires { gate.infer(run.ctx, p, run.x, saved.plan, run.extra); }) {
      gate.infer(run.ctx, p, run.x, saved.plan, run.extra);
    } else {
      gate.forward(run.ctx, p, run.x, saved.plan, saved.gate, run.extra);
    }
  }
};

/// The timed entries of a benchmark that belong to the routing. The time of routing is the sum of `parts` minus the sum
/// of `products`, the matrix products in these parts. This time is an upper bound if a layer fuses some parts.
struct Routing {
  std::vector<std::size_t> parts, products;

  double over(const Rounds& rounds, std::size_t layer) const {
    return rounds.median_over([&](auto of) {
      double seconds = 0;
      for (const std::size_t part : parts) seconds += of(part);
      for (const std::size_t product : products) seconds -= of(product);
      return seconds / of(layer);
    });
  }
};

template <class RunT>
auto scores_of(const RunT& run) {
  return with_model_dim(run.layer.branch.gate.scores, run.x.extent(1));
}

/// Returns random outputs of experts, because a mixture does not keep the real ones.
template <class RunT>
auto outputs_of(RunT& run) {
  const Index slots = run.saved.branch.plan.rows.size();
  return std::make_shared<Tensor<float, 2, Cpu>>(uniform_tensor<float>(run.ctx, Seed{4}, 1, slots, run.y.extent(1)));
}

template <class RunT>
auto logits_of(const RunT& run) {
  return std::make_shared<Tensor<float, 2, Cpu>>(run.x.extent(0), run.layer.branch.gate.scores.experts);
}

/// Adds entries that time the routing in inference: the gate, then combine, which sums the experts' outputs.
template <class RunT>
Routing add_routing(Rounds& rounds, RunT& run) {
  run.forward();  // makes the plan that combine reads
  const auto logits = logits_of(run);
  const auto z = outputs_of(run);
  const auto combined = std::make_shared<Tensor<float, 2, Cpu>>(run.y.extent(0), run.y.extent(1));
  const auto gate = rounds.time(GateRun<RunT>{run});
  const auto scores =
      rounds.time([=, &run] { scores_of(run).forward(run.ctx, run.params.branch.gate.scores, run.x, *logits); });
  const auto combine = rounds.time([=, &run] { run.saved.branch.plan.combine(run.ctx, *z, *combined); });
  return {{gate, combine}, {scores}};
}

/// Adds entries that time the routing in training: gate and combine in forward, then dispatch and gate in backward. The
/// gradient of the routing weights is not included, because experts compute it.
template <class RunT>
Routing add_training_routing(Rounds& rounds, RunT& run) {
  run.forward();
  run.backward();
  const auto& saved = run.saved.branch;
  const auto like = [](const auto& t) { return std::make_shared<Tensor<float, 2, Cpu>>(t.extent(0), t.extent(1)); };
  const auto z = outputs_of(run), combined = like(run.y), dx = like(run.x);
  const auto dslots = std::make_shared<Tensor<float, 2, Cpu>>(z->extent(0), run.x.extent(1));
  const auto logits = logits_of(run);
  fill(run.ctx, dslots->view(), 0.f);
  fill(run.ctx, dx->view(), 0.f);
  fill(run.ctx, logits->view(), 0.f);

  const auto gate = [&run] { return with_model_dim(run.layer.branch.gate, run.x.extent(1)); };
  const auto forward = rounds.time([=, &run, &saved] {
    auto& own = run.saved.branch;
    gate().forward(run.ctx, run.params.branch.gate, run.x, own.plan, own.gate, run.extra);
    saved.plan.combine(run.ctx, *z, *combined);
  });
  const auto backward = rounds.time([=, &run, &saved] {
    auto mark = run.ctx.mark();
    auto dplan = saved.plan.grad(run.ctx);
    typename decltype(gate())::template ExtraGrad<float, Cpu> unused{};
    saved.plan.dispatch_backward(run.ctx, run.x, *dslots, *dx, dplan);
    gate().backward(run.ctx, run.params.branch.gate, run.x, saved.plan, saved.gate, dplan, *dx, run.grads.branch.gate,
                    run.extra, unused);
  });
  const auto scores = rounds.time([=, &run] {
    scores_of(run).forward(run.ctx, run.params.branch.gate.scores, run.x, *logits);
    scores_of(run).backward(run.ctx, run.params.branch.gate.scores, run.x, *logits, *dx, run.grads.branch.gate.scores);
  });
  return {{forward, backward}, {scores}};
}

}  // namespace bench
