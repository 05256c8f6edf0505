#pragma once

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "gatefold/backend/softmax.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "support/pass.hpp"

/// Runs selections and gates without a layer.
namespace gatefold::support {

using Ids = std::vector<Index>;

/// Runs a selection on given ranks. The probabilities q are the softmax of the ranks, and the items are random.
template <class S, class T = double>
struct Selected {
  Cpu::Context ctx;
  S policy;
  Tensor<T, 2, Cpu> x, rank, q;
  Params<S, T, Cpu> params;
  SparsePlan<T, Cpu> plan;
  Saved<S, T, Cpu> saved;

  Selected(const S& s, Tensor<T, 2, Cpu> ranks, const Extra<S, T, Cpu>& extra = {}, std::vector<T> valid = {},
           int threads = 1)
      : ctx(threads),
        policy(with_experts(with_model_dim(s, 3), ranks.extent(1))),
        x(uniform_tensor<T>(ctx, Seed{9}, 1, ranks.extent(0), 3)),
        rank(std::move(ranks)),
        q(rank.extent(0), rank.extent(1)),
        params(init_params<T, Cpu>(policy, ctx, Seed{1})) {
    Cpu::for_rows(ctx, rank.extent(0), functor::Softmax<T, Cpu>{rank, q});
    Candidates<T, Cpu> c{x, rank, q};
    if (!valid.empty()) c.valid = valid;
    policy.forward(ctx, params, c, plan, saved, extra);
  }
  Ids experts() const { return {plan.expert.data(), plan.expert.data() + plan.expert.size()}; }
  Ids items() const { return {plan.item.data(), plan.item.data() + plan.item.size()}; }
};
template <class T = double, class S>
Selected<S, T> select(const S& policy, NonDeduced<Tensor<T, 2, Cpu>> rank, const Extra<S, T, Cpu>& extra = {},
                      NonDeduced<std::vector<T>> valid = {}, int threads = 1) {
  return {policy, std::move(rank), extra, std::move(valid), threads};
}

inline Tensor<double, 2, Cpu> random_ranks(Index items, Index experts, std::uint64_t seed = 4) {
  Cpu::Context ctx(1);
  return uniform_tensor<double>(ctx, Seed{seed}, 2, items, experts);
}
inline Tensor<double, 2, Cpu> equal_ranks(Index items, Index experts, double value = 0.5) {
  Cpu::Context ctx(1);
  return constant_tensor<double>(ctx, value, items, experts);
}

/// Returns true if every item n has the picks n·k, …, n·k + k − 1, of k different experts that exist.
inline bool picks_are_distinct(const SparsePlan<double, Cpu>& plan, Index k) {
  bool good = plan.expert.size() == plan.items() * k;
  for (Index n = 0; good && n < plan.items(); ++n) {
    std::set<Index> seen;
    for (Index p = n * k; p < n * k + k; ++p) {
      good = good && plan.item(p) == n && plan.expert(p) >= 0 && plan.expert(p) < plan.experts();
      seen.insert(plan.expert(p));
    }
    good = good && static_cast<Index>(seen.size()) == k;
  }
  return good;
}

/// A gate without experts. Computes f = Σ c · weight over the picks, with random c, plus the auxiliary losses, and all
/// gradients of f.
template <class GateT>
struct GateAlone {
  Cpu::Context ctx;
  GateT gate;
  Params<GateT, double, Cpu> params, grads;
  Tensor<double, 2, Cpu> x, dx;
  Tensor<double, 1, Cpu> cotangent;
  SparsePlan<double, Cpu> plan;
  Saved<GateT, double, Cpu> saved;
  Extra<GateT, double, Cpu> extra;

  GateAlone(const GateT& g, Index items, const Extra<GateT, double, Cpu>& inputs = {}, Seed seed = {1}, int threads = 1)
      : ctx(threads),
        gate(with_model_dim(g, 4)),
        params(init_params<double, Cpu>(gate, ctx, seed)),
        grads(zeros_like(ctx, params)),
        x(uniform_tensor<double>(ctx, seed.fork(1), 1, items, 4)),
        dx(constant_tensor<double>(ctx, 0, items, 4)),
        extra(inputs) {
    forward();
    cotangent = uniform_tensor<double>(ctx, seed.fork(2), 1, plan.weight.size());
  }
  void forward() { gate.forward(ctx, params, x, plan, saved, extra); }
  void backward() {
    auto mark = ctx.mark();
    auto dplan = plan.grad(ctx);
    for (Index p = 0; p < plan.expert.size(); ++p) dplan.weight(p) = plan.expert(p) < 0 ? 0 : cotangent(p);
    ExtraGrad<GateT, double, Cpu> dextra;
    gate.backward(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra);
  }
  double loss() {
    forward();
    double f = 0;
    for (const double v : values(saved.auxiliary)) f += v;
    for (Index p = 0; p < plan.expert.size(); ++p) f += plan.expert(p) < 0 ? 0 : cotangent(p) * plan.weight(p);
    return f;
  }
  check::GradientReport gradients(const check::GradientOptions& options = {}) {
    set_zero(ctx, grads);
    set_zero(ctx, dx);
    forward();
    backward();
    std::vector<check::GradientSlot> slots{{"x", x.data(), dx.data(), x.size()}};
    for_each_tensor(
        [&](const Name& name, auto& p, auto& g) {
          slots.push_back({name.str(), p.data(), g.data(), p.size()});
        },
        params, grads);
    const auto routing = [&] {
      std::uint64_t hash = 0;
      for (Index p = 0; p < plan.expert.size(); ++p) {
        hash = mix64(hash ^ static_cast<std::uint64_t>(plan.item(p)));
        hash = mix64(hash ^ static_cast<std::uint64_t>(plan.expert(p)));
      }
      return hash;
    };
    return check::compare_gradients(
        slots, [&] { return loss(); }, routing, options);
  }
  /// Returns the results of one forward and `backwards` backward passes on the given number of threads.
  std::vector<double> outcome(int threads, int backwards) {
    GateAlone fresh(gate, x.extent(0), extra, Seed{1}, threads);
    for (int i = 0; i < backwards; ++i) fresh.backward();
    return values(fresh.plan.weight, fresh.saved.auxiliary, fresh.dx, fresh.grads);
  }
  /// Returns true if repeated runs and different numbers of threads give the same bits, and backward adds to its
  /// gradients.
  bool keeps_promises() {
    const auto once = outcome(1, 1), twice = outcome(1, 2);
    const std::size_t from = static_cast<std::size_t>(plan.weight.size() + saved.auxiliary.size());
    bool adds = true;
    for (std::size_t i = from; i < once.size(); ++i)
      adds = adds && std::abs(twice[i] - 2 * once[i]) <= 1e-13 * std::abs(once[i]) + 1e-15;
    return adds && same_bits(once, outcome(1, 1)) && same_bits(once, outcome(3, 1)) && same_bits(once, outcome(8, 1));
  }
};

}  // namespace gatefold::support
