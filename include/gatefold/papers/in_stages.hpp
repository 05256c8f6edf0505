#pragma once

#include <utility>

#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/optimizer.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/parameter_group.hpp"

namespace gatefold {

/// Returns whether a tensor belongs to an attention: a part of its name (the text between two dots) is `key_query` or
/// begins with `attention`.
inline bool is_attention(const Name& name) {
  for (const Name* at = &name; at; at = at->parent)
    if (at->part == "key_query" || at->part.starts_with("attention")) return true;
  return false;
}

/// An optimizer that trains transformers in three stages: first the tensors outside attention, then the tensors of
/// attention, then the tensors outside attention again. t is the number of the epoch; T₁ and T₂ are the last epochs of
/// stages I and II.
///
///     I    t ≤ T₁         W ← ffn(W, ∇L)            W: all tensors outside attention                     (1)
///     II   T₁ < t ≤ T₂    W_KQ ← attention(W_KQ, ∇L)                                                     (2)
///     III  T₂ < t         W ← fine(W, ∇L)                                                                (3)
///
/// Source: paper 000, algorithm 1, eqs. (8) to (10). An optimizer has no state for tensors that it does not step. Each
/// of the three optimizers has a separate learning rate. A learning-rate schedule wraps one of them, not the InStages.
/// @param first, second  T₁ and T₂, the last epochs of stages I and II; equal numbers leave stage II out
/// @param attends  returns whether the tensor of this name belongs to attention. begin calls it for every tensor. It is
///                 a function, or a lambda without captures. Pass your own if attentions are parts of a Chain, because
///                 their names then do not contain `attention`
/// @param state.epoch  t, counted from 1. The caller sets it, because an epoch can have any number of steps
/// @throws ArgumentError unless 0 <= first <= second; if a stage has no tensor; in a step before the first epoch; or if
///         `attends` is not the function that begin called. Throws the errors of the stage's optimizer too.
///         Parameters and state are unchanged then
/// @cost   a step of one optimizer; no allocation after the first step of each stage; begin copies the parameters once
template <class FfnT = optim::NormalizedGd, class AttentionT = optim::Sgd, class FineT = optim::Sgd>
struct InStages {
  using IsOptimizer = void;
  Index first = 0, second = 0;
  FfnT ffn{};
  AttentionT attention{};
  FineT fine{};
  bool (*attends)(const Name&) = is_attention;

  /// The states of the three optimizers. Each state has elements only for the tensors that its optimizer updates; its
  /// other tensors are empty.
  template <class Pack>
  struct State {
    typename FfnT::template State<Pack> ffn;
    typename AttentionT::template State<Pack> attention;
    typename FineT::template State<Pack> fine;
    ParameterGroup<Pack> of_attention, rest;
    bool (*attends)(const Name&) = nullptr;  // the function that selected the tensors of attention
    Index step = 0, epoch = 0;
    static void each(auto&& f, auto&... s) {
      f("ffn", s.ffn...);
      f("attention", s.attention...);
      f("fine", s.fine...);
      f("of_attention", s.of_attention...);
      f("of_rest", s.rest...);
    }
    void lie_as(const State& other) { attends = other.attends; }
    static void counters(auto&& f, auto&... s) {
      f("step", s.step...);
      f("epoch", s.epoch...);
    }
  };

  /// Returns the stage of an epoch: 1, 2 or 3.
  int stage(Index epoch) const { return epoch <= first ? 1 : epoch <= second ? 2 : 3; }

  /// Checks the options of this optimizer.
  /// @param where   name of the calling function in the error message
  /// @param within  prefix of the option names `first` and `second` in the error message
  void validate(const char* where = "InStages", const char* within = "") const {
    expect(first >= 0, where, Joined{within, "first"}, "at least 0", first);
    expect(second >= first, where, Joined{within, "second"}, Joined{"at least ", within, "first = ", first}, second);
    expect(attends, where, Joined{within, "attends"}, "a function of names", "null");
    optim::validate_options(ffn);
    optim::validate_options(attention);
    optim::validate_options(fine);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    ParameterGroup of_attention(params, attends), rest(params, [this](const Name&name) { return !attends(name); });
    if (first != second) expect_attention("InStages.begin", of_attention);
    expect(!rest.empty(), "InStages.begin", "stages I and III",
           "at least one tensor that does not belong to an attention", "none");
    const Pack of_rest = rest.copy(ctx, params);
    auto of_ffn = ffn.begin(ctx, of_rest);
    auto of_both = attention.begin(ctx, of_attention.copy(ctx, params));
    auto of_fine = fine.begin(ctx, of_rest);
    return {std::move(of_ffn),       std::move(of_both), std::move(of_fine),
            std::move(of_attention), std::move(rest),    attends};
  }
  template <class Pack>
  void expect_step(Pack& params, Pack& grads, State<Pack>& state) const {
    expect(state.epoch >= 1, "InStages.step", "state.epoch", "at least 1", state.epoch);
    expect(state.attends == attends, "InStages.step", "attends", "the function that chose the groups in begin",
           "another function");
    if (stage(state.epoch) == 2) expect_attention("InStages.step", state.of_attention);
    expect_like("InStages.step", "grads", params, grads);
    of_stage(params, grads, state,
             [](const auto& optimizer, auto& p, auto& g, auto& of) { optim::expect_step(optimizer, p, g, of); });
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    const auto here = ctx.here();
    expect_step(params, grads, state);
    ++state.step;
    of_stage(params, grads, state,
             [&](const auto& optimizer, auto& p, auto& g, auto& of) { optimizer.step(ctx, p, g, of); });
  }

 private:
  template <class Pack>
  static void expect_attention(const char* where, const ParameterGroup<Pack>& group) {
    expect(!group.empty(), where, "stage II",
           "at least one tensor of an attention (named `key_query`, below a part named `attention`, or selected by "
           "`attends`)",
           "none");
  }
  /// Calls f(optimizer, params, grads, state) with the optimizer of the current stage. During the call, params and
  /// grads contain only the tensors that this optimizer updates.
  template <class Pack, class F>
  void of_stage(Pack& params, Pack& grads, State<Pack>& state, const F& f) const {
    const auto with = [&](const auto& optimizer, auto& of) {
      return [&](auto& p, auto& g) { f(optimizer, p, g, of); };
    };
    switch (stage(state.epoch)) {
      case 1:
        state.rest.only(with(ffn, state.ffn), params, grads);
        break;
      case 2:
        state.of_attention.only(with(attention, state.attention), params, grads);
        break;
      default:
        state.rest.only(with(fine, state.fine), params, grads);
    }
  }
};
template <class F = optim::NormalizedGd, class A = optim::Sgd, class E = optim::Sgd>
InStages(Index, Index, F = {}, A = {}, E = {}, bool (*)(const Name&) = {})
    -> InStages<optim::OrNoOptimizer<F>, optim::OrNoOptimizer<A>, optim::OrNoOptimizer<E>>;

}  // namespace gatefold
