#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

/// The program compose runs every gate with every update rule, and prints a table. This header measures one row of the
/// table, and makes all rows of a gate.
namespace compose {

using namespace gatefold;

struct Options {
  Index images = 256, patch = 7, experts = 8, k = 2, hidden = 64, layers = 3, runs = 7;
  std::uint64_t seed = 1;
  int threads = 0;
  std::string data = "/usr/share/datasets/fashion-mnist", json{};
};

/// The batch on which all rows are measured. An item is a patch; a sequence is an image.
struct Batch {
  const Options& options;
  Cpu::Context& ctx;
  Tensor<float, 2, Cpu> x;    // [N, D]
  Tensor<Index, 1, Cpu> ids;  // [N] position of each patch in its image; a hash gate chooses experts by this number
  Attention attention;        // attention over the patches of an image, for gates that use it
  Params<Attention, float, Cpu> attention_params;
  Saved<Attention, float, Cpu> attended;

  Index dim() const { return x.extent(1); }
  Index length() const { return attended.length; }
  AttentionTrace<const float, Cpu> trace() const { return attention.trace(attention_params, attended); }
};

/// The measurements of one forward pass through all layers.
struct Outcome {
  double output_norm = 0;      // mean norm ‖y‖₂ of the output rows y
  double routing_entropy = 0;  // routing entropy: mean over items and layers, in nats
  double largest_load = 0;     // largest share of the slots (rows of work) that one expert has
};

struct Row {
  std::string gate, update;
  std::function<void()> forward;
  std::function<Outcome()> outcome;
  std::vector<double> seconds{};  // one per run
};

/// Computes the entropy of the experts' shares for each item, and returns the mean over the items. The shares are the
/// gate's probabilities, if it has any. For Soft MoE, the share of an expert is the sum of the combine weights of its
/// slots. For a gate that learns nothing, the shares are the weights of its picks.
template <class MixtureSaved>
double routing_entropy(Cpu::Context& ctx, const MixtureSaved& mixture) {
  if constexpr (requires { mixture.gate.probabilities; }) {
    return metric::entropy(ctx, mixture.gate.probabilities.view());
  } else if constexpr (requires { mixture.plan.combine_weight; }) {
    const auto& w = mixture.plan.combine_weight;  // [N, E·P]
    const Index experts = mixture.plan.groups().experts(), slots = w.extent(1) / experts;
    Tensor<float, 2, Cpu> q(w.extent(0), experts);
    for (Index i = 0; i < q.size(); ++i)
      q.data()[i] = std::accumulate(w.data() + i * slots, w.data() + (i + 1) * slots, 0.0f);
    return metric::entropy(ctx, q.view());
  } else {
    const auto& w = mixture.plan.weight;
    return metric::entropy(ctx, w.view().as(mixture.plan.items(), w.size() / mixture.plan.items()));
  }
}

/// Computes the measurements of a forward pass from its output y and its saved state.
template <class Saved>
Outcome outcome(Cpu::Context& ctx, View<const float, 2, Cpu> y, const Saved& saved) {
  Outcome o;
  for (Index n = 0; n < y.extent(0); ++n) {
    double square = 0;
    for (Index d = 0; d < y.extent(1); ++d) square += static_cast<double>(y(n, d)) * static_cast<double>(y(n, d));
    o.output_norm += std::sqrt(square) / static_cast<double>(y.extent(0));
  }
  Index mixtures = 0;
  for_each_mixture(saved, [&](const auto& mixture) {
    ++mixtures;
    const auto groups = mixture.plan.groups();
    for (Index e = 0; e < groups.experts(); ++e)
      o.largest_load = std::max(o.largest_load, static_cast<double>(groups.offsets(e + 1) - groups.offsets(e)) /
                                                    static_cast<double>(groups.offsets(groups.experts())));
    o.routing_entropy += routing_entropy(ctx, mixture);
  });
  o.routing_entropy /= static_cast<double>(mixtures);
  return o;
}

/// A stack of layers with its state. Its forward pass can run repeatedly.
template <class LayerT>
struct Pass {
  Stack<LayerT> model;
  Params<Stack<LayerT>, float, Cpu> params;
  Carry<Stack<LayerT>, float, Cpu> carry;
  Saved<Stack<LayerT>, float, Cpu> saved;
  Tensor<float, 2, Cpu> y;
  Extra<Stack<LayerT>, float, Cpu> extra;

  void forward(const Batch& batch) {
    model.begin(batch.ctx, params, batch.x.extent(0), carry);
    model.forward(batch.ctx, params, batch.x, carry, y, saved, extra);
  }
};

template <class RuleT, class GateT, class ExtraT>
Row row(const Batch& batch, const char* gate_name, const GateT& gate, const ExtraT& extra, const char* rule_name,
        const RuleT& rule) {
  const Options& o = batch.options;
  Residual layer{rule, Mixture{gate, Mlp<Gelu>{.model_dim = batch.dim(), .hidden_dim = o.hidden}}};
  Stack model{layer, o.layers};
  auto pass = std::make_shared<Pass<decltype(layer)>>(
      Pass<decltype(layer)>{model,
                            init_params<float, Cpu>(model, batch.ctx, Seed{o.seed}),
                            {},
                            {},
                            Tensor<float, 2, Cpu>(batch.x.extent(0), batch.dim()),
                            extra});
  return {gate_name, rule_name, [&batch, pass] { pass->forward(batch); },
          [&batch, pass] { return outcome(batch.ctx, pass->y, pass->saved); }};
}

/// Appends one table row for each update rule, combined with the given gate.
template <class GateT, class ExtraT>
void add_rows(const Batch& batch, std::vector<Row>& rows, const char* name, const GateT& gate, const ExtraT& extra) {
  const auto add = [&](const char* rule_name, const auto& rule) {
    rows.push_back(row(batch, name, gate, extra, rule_name, rule));
  };
  add("Plain", update::Plain{});
  add("HeavyBall", update::HeavyBall{});
  add("HeavyBall, mu < 0", update::HeavyBall{.mu = -0.5});
  add("Adam", update::Adam{});
  add("Adam, then HeavyBall", update::First{update::Adam{}, update::HeavyBall{}});
  add("RmsProp, then HeavyBall", update::First{update::RmsProp{}, update::HeavyBall{}});
  add("Robust", update::Robust{});
  add("Nesterov", update::Nesterov{});
  add("TimeVarying", update::TimeVarying{});
  add("ScheduledRestart", update::ScheduledRestart{});
  add("SharpnessAware", update::SharpnessAware{});
  add("ComplexMomentum", update::ComplexMomentum{});
  add("ZeroOrderHold", update::ZeroOrderHold{});
  add("LearnedHeavyBall", update::LearnedHeavyBall{});
}
template <class GateT>
void add_rows(const Batch& batch, std::vector<Row>& rows, const char* name, const GateT& gate) {
  add_rows(batch, rows, name, gate, Extra<GateT, float, Cpu>{});
}

}  // namespace compose
