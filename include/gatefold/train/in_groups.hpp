#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/optim/optimizer.hpp"
#include "gatefold/train/parameter_group.hpp"

namespace gatefold {

namespace detail_::in_groups {

/// The template argument that a deduction guide of InGroups{belongs, first, rest} selects for the type of `first` if
/// `belongs` is not a function of tensor names. A static_assert then describes the mistake.
struct NoFunction {};

template <class O, class Pack, class Seen>
void expect_groups(const O& optimizer, const Pack& params, const Seen& seen);

}  // namespace detail_::in_groups

/// Returns true if a tensor is a weight, to which weight decay should apply. Biases, gains of norms and parameters of
/// update rules (for example μ and γ) are not weights. The function reads only the name of the tensor. Therefore the
/// learned temperature of cosine scores and the scale of Soft MoE count as weights.
inline bool is_weight(const Name& name) {
  for (const Name* at = &name; at; at = at->parent)
    if (at->part == "rule") return false;
  return name.part != "gain" && !name.part.ends_with("bias");
}

/// Updates two groups of parameters with two different optimizers:
///
///     optim::AdamW adam{.lr = 1e-3}, decaying{.lr = 1e-3, .decay = 0.1};
///     Trainer trainer{ctx, model, loss, InGroups{is_weight, decaying, adam}, Seed{1}};
///
///     W ← first(W, ∇L) if belongs(name of W),   W ← rest(W, ∇L) otherwise                               (1)
///
/// Names are as in for_each_tensor. For example, an embedding at the beginning of a Chain is `layers.0.weight`. If the
/// loss of a Trainer has parameters, names begin with `model.` or `loss.`. For more groups, `rest` can be another
/// InGroups. An optimizer has no state for tensors that it does not update. Clipped{InGroups{…}, norm} bounds the norm
/// of the gradients of all groups together.
/// @param belongs  a function of the name of a tensor, or a lambda without captures. It returns true if `first` updates
///         the tensor. Only `begin` calls the function, several times for each tensor
/// @param lr       factor of the rates of both optimizers, so that Scheduled can wrap InGroups
/// @throws ArgumentError if lr is negative or not finite, if a group has no tensor, if `belongs` is not the function
///         with which `begin` was called, if an option is invalid, or if a gradient has a wrong shape. Parameters and
///         state are then unchanged
/// @cost   the steps of both optimizers; no allocation after the first step. `begin` makes a temporary copy of the
///         parameters of one group at a time
template <class FirstT, class RestT>
struct InGroups {
  GATEFOLD_REQUIRE((!std::is_same_v<FirstT, detail_::in_groups::NoFunction>),
                   "gatefold: the first argument of InGroups{belongs, first, rest} must be a function, or a lambda "
                   "without captures, that takes the name of a tensor and returns whether the first optimizer updates "
                   "it; see docs/how-to/extending_parts.md#optimizer");
  using IsOptimizer = void;
  static_assert(optim::check_inside<FirstT>() && optim::check_inside<RestT>());
  bool (*belongs)(const Name&) = is_weight;
  FirstT first{};
  RestT rest{};
  double lr = 1;

  /// The states of both optimizers. A tensor that an optimizer does not update is empty in the state of that optimizer.
  template <class Pack>
  struct State {
    typename FirstT::template State<Pack> first;
    typename RestT::template State<Pack> rest;
    ParameterGroup<Pack> of_first, of_rest;
    bool (*belongs)(const Name&) = nullptr;  // the function that `begin` used to choose the groups
    Index step = 0;
    GATEFOLD_PACK(first, rest, of_first, of_rest)
    void lie_as(const State& other) { belongs = other.belongs; }
  };

  void validate() const {
    optim::expect_rate("InGroups", "lr", lr);
    expect(belongs, "InGroups", "belongs", "a function of names", "null");
    optim::validate_options(scaled(first));
    optim::validate_options(scaled(rest));
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    expect_groups(params, [](const Name&) { return true; });
    ParameterGroup of_first(params, belongs), of_rest(params, [this](const Name&name) { return !belongs(name); });
    auto begun = first.begin(ctx, of_first.copy(ctx, params));
    auto others = rest.begin(ctx, of_rest.copy(ctx, params));
    return {std::move(begun), std::move(others), std::move(of_first), std::move(of_rest), belongs};
  }
  /// Requires that each group of tensors has at least one tensor.
  /// @throws ArgumentError if a group of this InGroups, or of an InGroups inside it, has no tensor
  template <class Pack, class Seen>
  void expect_groups(const Pack& params, const Seen& seen) const {
    const auto of_first = [&](const Name& name) { return seen(name) && belongs(name); };
    const auto of_rest = [&](const Name& name) { return seen(name) && !belongs(name); };
    Index tensors = 0, chosen = 0;
    detail_::pack::visit_any(
        [&](const Name& name, const AnyTensor*) {
          tensors += seen(name);
          chosen += of_first(name);
        },
        Name{}, false, params);
    expect(chosen > 0, "InGroups.begin", "belongs",
           Joined{"true for the name of at least one of ", tensors, " tensors"}, "false for all");
    expect(chosen < tensors, "InGroups.begin", "belongs",
           Joined{"false for the name of at least one of ", tensors, " tensors"}, "true for all");
    detail_::in_groups::expect_groups(first, params, of_first);
    detail_::in_groups::expect_groups(rest, params, of_rest);
  }
  template <class Pack>
  void expect_step(Pack& params, Pack& grads, State<Pack>& state) const {
    validate();
    expect(state.belongs == belongs, "InGroups.step", "belongs", "the function that chose the groups in begin",
           "another function");
    expect_like("InGroups.step", "grads", params, grads);
    state.of_first.only([&](auto& p, auto& g) { optim::expect_step(scaled(first), p, g, state.first); }, params, grads);
    state.of_rest.only([&](auto& p, auto& g) { optim::expect_step(scaled(rest), p, g, state.rest); }, params, grads);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    const auto here = ctx.here();
    expect_step(params, grads, state);
    ++state.step;
    state.of_first.only([&](auto& p, auto& g) { scaled(first).step(ctx, p, g, state.first); }, params, grads);
    state.of_rest.only([&](auto& p, auto& g) { scaled(rest).step(ctx, p, g, state.rest); }, params, grads);
  }

 private:
  template <class O>
  O scaled(const O& optimizer) const {
    return optim::with_rate(optimizer, optim::rate_of(optimizer) * lr);
  }
};
template <class F, class R>
InGroups(bool (*)(const Name&), F, R, double = 1) -> InGroups<optim::OrNoOptimizer<F>, optim::OrNoOptimizer<R>>;
template <class K, class F, class R, class = std::enable_if_t<!std::is_convertible_v<K, bool (*)(const Name&)>>>
InGroups(K, F, R, double = 1) -> InGroups<detail_::in_groups::NoFunction, R>;

namespace detail_::in_groups {

/// Requires that every group of tensors of an InGroups (several optimizers for groups of parameters) has at least one
/// tensor. Finds an InGroups also inside another optimizer. Does nothing if there is no InGroups.
/// @param seen  a function of the name of a tensor; returns true if the optimizer updates this tensor
template <class O, class Pack, class Seen>
void expect_groups(const O& optimizer, const Pack& params, const Seen& seen) {
  if constexpr (requires { optimizer.expect_groups(params, seen); }) {
    optimizer.expect_groups(params, seen);
  } else if constexpr (requires { optimizer.optimizer; }) {
    expect_groups(optimizer.optimizer, params, seen);
  }
}

}  // namespace detail_::in_groups
}  // namespace gatefold
