#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/loss/loss.hpp"

/// Compares the gradients of a policy that you write yourself, for example of an expert or a loss, with finite
/// differences.
namespace gatefold::check {

/// Options of the gradient checks: inputs, step sizes and tolerances of the comparison with finite differences.
struct GradientOptions {
  Index items = 7;
  Seed seed{1};
  double step = 1e-4;  // h; the error of the difference is O(h⁴)
  // Tolerance: |numeric − analytic| ≤ relative · max(|numeric|, |analytic|) + of_largest · (largest entry of the
  // gradient of the tensor).
  double relative = 1e-6;
  double of_largest = 1e-9;
  // Largest share of values that may be skipped because a step of the difference changes the experts picked.
  double most_skipped = 0.05;
  double input_scale = 1;  // inputs x are random with |x| ≤ input_scale
  /// Random numbers in [−moved, moved) are added to the parameters before the check, because equal initial values can
  /// hide wrong gradients.
  double moved = 0;
  // Names of tensors whose gradient must be 0 up to rounding. The check fails for any other tensor whose gradient is 0
  // everywhere.
  std::vector<std::string> zero{};
};

/// The result of a gradient check. `sentences` has a sentence for each failure, and is empty if the check passes.
struct GradientReport {
  Index checked = 0, skipped = 0;
  // The largest error |numeric − analytic|, divided by the largest entry of the gradient of the same tensor.
  double worst = 0;
  std::vector<std::string> sentences{};

  explicit operator bool() const { return sentences.empty(); }
  std::string str() const {
    std::ostringstream text = message_stream();
    text << checked << " checked, " << skipped << " skipped, worst " << worst;
    for (const std::string& sentence : sentences) text << "\n  " << sentence;
    return text.str();
  }
};

/// One argument of compare_gradients: a tensor of inputs of the loss, and its gradient to be checked, both in host
/// memory.
struct GradientSlot {
  std::string name;
  double* value;
  const double* gradient;
  Index size;
};

/// Checks the gradients that a policy computes. Compares the gradient of each value v with the five-point central
/// difference of the loss f with respect to v:
///
///     g ≈ (8 (f(v+h) − f(v−h)) − (f(v+2h) − f(v−2h))) / 12h                                             (1)
///
/// If the difference with h = options.step does not match, 10 h and h / 10 are tried too: a larger h has a smaller
/// rounding error, a smaller h has a smaller error of (1). A wrong gradient matches none of the three. `routing()`
/// returns a hash of the experts picked in the last call of `loss`. If a step changes the picks, the value is skipped
/// and counted. NaN fails.
///
/// A gradient that is zero everywhere fails unless options.zero names it. A gradient that is zero up to rounding fails
/// too, that is, a gradient for which all differences and all analytic values are at most
///
///     floor = 2 ε max(|f|, terms) / h,   ε = 2⁻⁵²                                                       (2)
///
/// If f has a relative error of ε, the error of (1) is at most (8 + 8 + 1 + 1) / 12 h times the error of f, which is
/// below the floor. Below the floor, (1) cannot distinguish a right gradient from a wrong one, so the numeric and the
/// analytic values are not compared.
/// @param terms  used in (2): the sum of the absolute values of the terms of the loss. Pass it if these terms nearly
///         cancel
/// @cost   four evaluations of the loss per value, up to twelve if the first difference is too coarse
inline GradientReport compare_gradients(const std::vector<GradientSlot>& slots, const std::function<double()>& loss,
                                        const std::function<std::uint64_t()>& routing, const GradientOptions& options,
                                        double terms = 0) {
  GradientReport report;
  const double size = std::max(std::abs(loss()), terms);
  const double floor = 2 * std::numeric_limits<double>::epsilon() * size / options.step;
  const std::uint64_t home = routing();
  // Returns the central difference (1), or nothing if one of its four evaluations picks other experts.
  const auto difference = [&](const GradientSlot& slot, Index i, double h) -> std::optional<double> {
    const double v = slot.value[i], offset[4] = {h, -h, 2 * h, -2 * h};
    double f[4];
    bool same = true;
    for (int k = 0; k < 4; ++k) {
      slot.value[i] = v + offset[k];
      f[k] = loss();
      same = same && routing() == home;
    }
    slot.value[i] = v;
    if (!same) return std::nullopt;
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
  };
  for (const GradientSlot& slot : slots) {
    struct Pair {
      Index at;
      double numeric, analytic;
    };
    std::vector<Pair> pairs;
    double largest = 0, largest_analytic = 0;
    for (Index i = 0; i < slot.size; ++i) {
      const std::optional<double> numeric = difference(slot, i, options.step);
      if (!numeric) {
        ++report.skipped;
        continue;
      }
      ++report.checked;
      pairs.push_back({i, *numeric, slot.gradient[i]});
      largest_analytic = std::max(largest_analytic, std::abs(pairs.back().analytic));
      largest = std::max({largest, std::abs(pairs.back().numeric), largest_analytic});
    }
    if (slot.size > 0 && pairs.empty())
      report.sentences.push_back(slot.name +
                                 ": every value was skipped because the routing changes: use another seed or step");
    const bool zero_by_design = std::find(options.zero.begin(), options.zero.end(), slot.name) != options.zero.end();
    const auto is_rounding = [&](const Pair& p) {  // false if a value is NaN
      return std::abs(p.numeric) <= floor && std::abs(p.analytic) <= floor;
    };
    if (!zero_by_design && largest_analytic > 0 && std::all_of(pairs.begin(), pairs.end(), is_rounding)) {
      std::ostringstream text = message_stream();
      text << slot.name << ": the gradient is zero to rounding (numeric and analytic up to " << largest
           << ", where rounding of the loss gives up to " << floor << "); name it in options.zero if it should be";
      report.sentences.push_back(text.str());
      continue;
    }
    bool any = false;
    for (Pair& p : pairs) {
      const auto error = [&](double numeric) { return std::abs(numeric - p.analytic); };
      const auto fits = [&] {
        if (zero_by_design) return std::abs(p.analytic) <= floor && std::abs(p.numeric) < std::max(1e-9, floor);
        return error(p.numeric) <=
               options.relative * std::max(std::abs(p.numeric), std::abs(p.analytic)) + options.of_largest * largest;
      };
      for (const double h : {10 * options.step, options.step / 10}) {
        if (fits()) break;
        const std::optional<double> other = difference(slot, p.at, h);
        if (other && error(*other) < error(p.numeric)) p.numeric = *other;
      }
      any = any || !(std::abs(p.analytic) <= (zero_by_design ? floor : 0));
      if (largest > 0) report.worst = std::max(report.worst, error(p.numeric) / largest);
      if (!fits()) {  // also true if a value is NaN
        std::ostringstream text = message_stream();
        text << slot.name << '[' << p.at << "]: numeric " << p.numeric << ", analytic " << p.analytic;
        report.sentences.push_back(text.str());
        break;
      }
    }
    if (!any && !zero_by_design && !pairs.empty())
      report.sentences.push_back(slot.name +
                                 ": the gradient is zero everywhere; name it in options.zero if it should be");
    if (any && zero_by_design) report.sentences.push_back(slot.name + ": expected a zero gradient");
  }
  if (static_cast<double>(report.skipped) > options.most_skipped * static_cast<double>(report.checked + report.skipped))
    report.sentences.push_back("too many values skipped because the routing changes: " +
                               std::to_string(report.skipped));
  if (report.checked == 0) report.sentences.push_back("nothing was checked");
  return report;
}

/// Returns a hash of the discrete choices of all mixtures in a forward pass: the experts picked for each item, and
/// choices of a gate's mixing.
std::uint64_t routing_of(const auto& saved) {
  std::uint64_t hash = 0;
  auto take = [&](Index choice) { hash = mix64(hash ^ static_cast<std::uint64_t>(choice + 1)); };
  for_each_mixture(saved, [&](const auto& mixture) {
    if constexpr (requires { mixture.plan.expert.data(); })
      for (Index i = 0; i < mixture.plan.expert.size(); ++i) {
        take(mixture.plan.item.data()[i]);
        take(mixture.plan.expert.data()[i]);
      }
    if constexpr (requires { mixture.gate.mixing; }) {
      using Mixing = std::remove_reference_t<decltype((mixture.gate.mixing))>;
      if constexpr (detail_::hook::saved::choices<Mixing, decltype(take)>()) mixture.gate.mixing.choices(take);
    }
  });
  return hash;
}

/// Returns the sum of the weighted auxiliary losses of all mixtures in a forward pass. backward of a gate includes the
/// gradient of these losses.
double auxiliary_of(const auto& saved) {
  double total = 0;
  for_each_mixture(saved, [&](const auto& mixture) {
    if constexpr (requires { mixture.gate.auxiliary.data(); })
      for (Index i = 0; i < mixture.gate.auxiliary.size(); ++i) total += mixture.gate.auxiliary.data()[i];
  });
  return total;
}

/// Returns random inputs for a layer: rows with values uniform in [−scale, scale), or uniform ids if the layer reads
/// ids.
/// @param ctx  a context of a host backend
template <class T, class C, class L>
auto random_items(C& ctx, Seed seed, double scale, const L& layer, Index items) {
  using B = typename C::Backend;
  if constexpr (detail_::policy::reads_ids<L, T, B>) {
    Tensor<Index, 1, B> ids(items);
    const auto count = static_cast<double>(layer.in_dim());
    for (Index n = 0; n < items; ++n)
      ids(n) = static_cast<Index>(uniform<double>(seed, 0, static_cast<std::uint64_t>(n)) * count);
    return ids;
  } else {
    return uniform_tensor<T>(ctx, seed, scale, items, layer.in_dim());
  }
}

/// Returns a zero gradient for the inputs of a layer: a tensor, or Nothing if the layer reads ids, which have no
/// gradient.
template <class T, class C, class L>
auto zero_items_grad(C& ctx, const L& layer, Index items) {
  using B = typename C::Backend;
  if constexpr (detail_::policy::reads_ids<L, T, B>) {
    return Nothing<T, B>{};
  } else {
    Tensor<T, 2, B> dx(items, layer.in_dim());
    set_zero(ctx, dx);
    return dx;
  }
}

namespace steps {

/// A visitor that lists the name, address and size of each tensor of a pack in host memory. It is a named type instead
/// of a lambda, so that code that two models share is compiled only once.
struct Values {
  struct Part {
    std::string name;
    double* values;
    Index count;
    double* data() const { return values; }
    Index size() const { return count; }
  };
  std::vector<Part> all{};
  void operator()(const Name& name, auto& t) { all.push_back({name.str(), t.data(), t.size()}); }
};
std::vector<Values::Part> values_of(auto& pack) {
  Values values;
  for_each_tensor(values, pack);
  return values.all;
}
std::vector<Values::Part> learned_values_of(auto& pack) {
  Values values;
  for_each_learned(values, pack);
  return values.all;
}

}  // namespace steps

/// Checks all gradients of a layer, a branch or an expert in double: with respect to the input (unless it is ids), the
/// parameters, and the initial carry (the state passed from layer to layer). The loss f is
///
///     f = ⟨y, c⟩ + ⟨carry after, d⟩ + auxiliary losses,   c and d random                                 (3)
///
/// @param ctx  a context of a host backend
template <class C, class L>
GradientReport gradients(
    C& ctx, const L& part, const GradientOptions& options = {},
    const Extra<AsLayer<L, double, typename C::Backend>, double, typename C::Backend>& extra = {}) {
  using B = typename C::Backend;
  using Layer = AsLayer<L, double, B>;
  GATEFOLD_REQUIRE(B::is_host,
                   "gatefold: check::gradients needs a context of a host backend, for example Cpu::Context");
  const Layer layer = as_layer<double, B>(part);
  const Index items = options.items;

  auto params = init_params<double, B>(layer, ctx, options.seed);
  auto grads = zeros_like(ctx, params);
  const auto learned = steps::learned_values_of(params);
  std::uint64_t stream = 1000;
  for (const auto& p : learned) {
    const auto step = uniform_tensor<double>(ctx, options.seed.fork(++stream), options.moved, p.size());
    for (Index i = 0; i < p.size(); ++i) p.data()[i] += step.data()[i];
  }
  auto x = random_items<double>(ctx, options.seed.fork(1), options.input_scale, layer, items);
  const auto cotangent = uniform_tensor<double>(ctx, options.seed.fork(2), 1, items, layer.out_dim());
  Tensor<double, 2, B> y(items, layer.out_dim());
  auto dx = zero_items_grad<double>(ctx, layer, items);

  Carry<Layer, double, B> start, carry, dcarry, carry_cotangent;
  for (auto* c : {&start, &carry, &dcarry, &carry_cotangent}) layer.begin(ctx, params, items, *c);
  const auto starts = steps::values_of(start), cotangents = steps::values_of(carry_cotangent);
  stream = 10;
  for (std::size_t k = 0; k < starts.size(); ++k) {
    fill_uniform(ctx, options.seed.fork(++stream), 0.1, 1, starts[k]);
    fill_uniform(ctx, options.seed.fork(++stream), -1, 1, cotangents[k]);
  }

  auto evaluate = [&](Saved<Layer, double, B>& saved) {
    layer.begin(ctx, params, items, carry);
    copy_pack(ctx, start, carry);
    layer.forward(ctx, params, x, carry, y, saved, extra);
    double f = auxiliary_of(saved);
    for (Index i = 0; i < y.size(); ++i) f += y.data()[i] * cotangent.data()[i];
    const auto after = steps::values_of(carry);
    for (std::size_t k = 0; k < after.size(); ++k)
      for (Index i = 0; i < after[k].size(); ++i) f += after[k].data()[i] * cotangents[k].data()[i];
    return f;
  };

  Saved<Layer, double, B> saved, probe;
  evaluate(saved);
  double terms = std::abs(auxiliary_of(saved));
  const auto add_terms = [&](const auto& values, const auto& factors) {
    for (Index i = 0; i < values.size(); ++i) terms += std::abs(values.data()[i] * factors.data()[i]);
  };
  add_terms(y, cotangent);
  const auto after = steps::values_of(carry);
  for (std::size_t k = 0; k < after.size(); ++k) add_terms(after[k], cotangents[k]);
  copy_pack(ctx, carry_cotangent, dcarry);
  backward(layer, ctx, params, x, saved, cotangent, dcarry, dx, grads, extra);

  std::vector<GradientSlot> slots;
  if constexpr (!detail_::policy::reads_ids<Layer, double, B>)
    slots.push_back({"x", x.data(), std::as_const(dx).data(), x.size()});
  const auto add_slots = [&](const std::string& prefix, const auto& values, const auto& gradients) {
    for (std::size_t k = 0; k < values.size(); ++k)
      slots.push_back({prefix + values[k].name, values[k].data(), gradients[k].data(), values[k].size()});
  };
  add_slots("", learned, steps::learned_values_of(grads));
  add_slots("carry.", starts, steps::values_of(dcarry));
  return compare_gradients(
      slots, [&] { return evaluate(probe); }, [&] { return routing_of(probe); }, options, terms);
}

/// Checks the gradients of a loss policy in double: the gradient dy of the outputs, and the gradients of the loss's own
/// parameters, if it has any. A loss that uses parameters of a model gets an empty model.
///
/// @param ctx  a context of a host backend
/// @param y  [N, out_dim] outputs at which the loss is differentiable; y is unchanged after the call
/// @param target  the target of the loss, for outputs in double
/// @throws ArgumentError if `validate` of the loss throws it for y or the target
template <class C, class LossT>
GradientReport loss_gradients(C& ctx, const LossT& of_outputs, Tensor<double, 2, typename C::Backend>& y,
                              const detail_::loss::TargetOf<LossT, double, typename C::Backend>& target,
                              const GradientOptions& options = {}) {
  using B = typename C::Backend;
  using Model = Nothing<double, B>;
  using Call = detail_::loss::Of<LossT, Model, double, B>;
  GATEFOLD_REQUIRE(B::is_host,
                   "gatefold: check::loss_gradients needs a context of a host backend, for example Cpu::Context");
  of_outputs.template validate<double, B>(y, target);
  auto params = Call::init(of_outputs, ctx, options.seed, Model{});
  auto grads = zeros_like(ctx, params);
  Tensor<double, 2, B> dy(y.extent(0), y.extent(1));
  // Fills dy with NaN, so that the check fails if backward does not write all values.
  fill(ctx, dy.view(), std::numeric_limits<double>::quiet_NaN());
  Tensor<double, 1, B> value(1);
  Saved<LossT, double, B> saved;
  const auto evaluate = [&] {
    Call::forward(of_outputs, ctx, params, y, target, value, saved);
    return value(0);
  };
  evaluate();
  Call::backward(of_outputs, ctx, params, y, target, saved, dy, grads);

  std::vector<GradientSlot> slots{{"y", y.data(), std::as_const(dy).data(), y.size()}};
  const auto learned = steps::learned_values_of(params), adjoints = steps::learned_values_of(grads);
  for (std::size_t i = 0; i < learned.size(); ++i)
    slots.push_back({learned[i].name, learned[i].data(), adjoints[i].data(), learned[i].size()});
  return compare_gradients(
      slots, evaluate, [] { return std::uint64_t(0); }, options);
}

}  // namespace gatefold::check
