#pragma once

#include <utility>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/optimizer.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/in_stages.hpp"
#include "gatefold/papers/routed_trainer.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/train/not_finite.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), SumOverExperts);

/// Trains a mixture of transformers in three stages, and its router (gate) in all of them. t counts the epochs; L_e is
/// the loss of the experts, L_r the loss of the router, and Θ the parameters of the router.
///
///     I    t ≤ T₁         W ← ffn(W, ∇L_e)            W: all tensors outside attention                   (1)
///     II   T₁ < t ≤ T₂    W_KQ ← attention(W_KQ, ∇L_e)                                                   (2)
///     III  T₂ < t         W ← fine(W, ∇L_e)                                                              (3)
///     always              Θ ← router(Θ, ∇L_r)                                                            (4)
///
/// RoutedTrainer defines L_e and L_r. With the default `ffn` (NormalizedGd), (1) is W_i ← W_i − η G_i / ‖G_i‖_F for
/// each expert i with gradient G_i. All gradients of a step are computed before any parameter changes. (The paper's
/// listing changes W before Θ and does not state at which W the gradient of Θ is taken.)
///
/// Source: paper 000, algorithm 1, eqs. (6), (8) to (10).
/// @param stages  see Stages; an epoch is one call of begin_epoch and any number of steps
/// @throws ArgumentError unless 0 <= first <= second; if a stage has no tensor; in a step before the first epoch; or if
///         `stages.shared_attention` has changed since the constructor, because the constructor makes the attentions
///         equal. Throws the errors of the stage's optimizer and of the router's optimizer too, before a parameter
///         changes. NotFiniteError if a loss or gradient is not finite (see `not_finite`); no parameter has changed
///         then
/// @cost   forward and backward of the mixture, one reading of the gradients and two optimizer steps; no allocation
///         after the first step of each stage
template <class T, class C, class MixtureT, class LossT, class StagesT>
class ThreeStage {
  GATEFOLD_REQUIRE(
      requires(const StagesT& of_parts) { of_parts.of_experts(); },
      "gatefold: a ThreeStage takes Stages, its epochs and optimizers: ThreeStage{ctx, mixture, loss, "
      "Stages{100, 200, ffn, attention, fine, router}, seed}");
  using Trainer = RoutedTrainer<T, C, MixtureT, LossT>;
  using B = typename C::Backend;
  using Expert = decltype(Trainer::Params::expert);
  using Gate = decltype(Trainer::Params::gate);
  using OfExperts = decltype(std::declval<const StagesT&>().of_experts());
  using OfRouter = decltype(StagesT::router);

 public:
  using Losses = typename Trainer::Losses;
  using Target = typename Trainer::Target;
  using Extra = typename Trainer::Extra;
  /// The states of the four optimizers. Each state has elements only for the tensors that its optimizer updates; its
  /// other tensors are empty.
  struct State : OfExperts::template State<Expert> {
    typename OfRouter::template State<Gate> router;
    static void each(auto&& f, auto&... s) {
      OfExperts::template State<Expert>::each(f, s...);
      f("router", s.router...);
    }
  };

  ThreeStage(C& ctx, const MixtureT& mixture, const LossT& loss, const StagesT& of_parts, Seed seed, Element<T> = {})
      : trainer(ctx, mixture, loss, seed), stages(of_parts), state(begin()), shared_(stages.shared_attention) {
    if (stages.shared_attention)
      for_each_attention(trainer.params.expert, [&](auto& t) {
        if (t.size() > 0) repeat_first(ctx, t.extent(0), t.size() / t.extent(0), t.view());
      });
  }

  /// Begins the next training epoch. The first call begins epoch 1.
  void begin_epoch() {
    const auto here = context().here();
    ++state.epoch;
  }
  /// Sets the number of completed epochs, to continue an interrupted run. First restore trainer.params and state. The
  /// run then gives the same results as without the interruption.
  void resume_after(Index epoch) {
    const auto here = context().here();
    state.epoch = epoch;
  }
  Index epoch() const {
    const auto here = context().here();
    return state.epoch;
  }
  /// Returns the stage of the current epoch: 1, 2 or 3.
  int stage() const { return stages.of_experts().stage(epoch()); }

  /// The compiler chooses this overload for calls with wrong arguments, for example without a target. Such a call does
  /// not compile, and a static_assert shows the correct arguments.
  void step(detail_::policy::Misuse<"gatefold: step takes items and their target, run.step(x, target)">);
  /// Makes one training step of the current stage with the given items. Returns the losses before the step. Without
  /// items, returns losses of 0 and changes no parameter and no state of an optimizer.
  Losses step(In<T, 2, B> x, Target target, const Extra& extra = {}) {
    C& ctx = trainer.context();
    const auto here = ctx.here();
    expect(epoch() >= 1, "ThreeStage.step", "epoch", "at least 1 (call begin_epoch first)", epoch());
    expect(stages.shared_attention == shared_, "ThreeStage.step", "stages.shared_attention",
           Joined{shared_, ", as in the constructor"}, stages.shared_attention);
    trainer.backward(x, target, for_training(extra));
    if (x.extent(0) == 0) return {};
    if (stages.shared_attention)
      for_each_attention(trainer.grads.expert, [&](auto& t) {
        if (t.size() > 0)
          B::for_each(ctx, t.size() / t.extent(0),
                      functor::SumOverExperts<T>{t.extent(0), t.size() / t.extent(0), t.data()});
      });
    auto mark = ctx.mark();
    bool finite = true;
    const Losses losses = trainer.losses(target, optim::measure_finite(ctx, trainer.grads).total, &finite);
    if (!finite || !functor::is_finite(losses.router) || !functor::is_finite(losses.experts)) {
      if (not_finite == NotFinite::throws)
        throw_not_finite("ThreeStage.step", ctx, losses.router + losses.experts, trainer.grads);
      ++skipped;
      return losses;
    }
    const auto of_experts = stages.of_experts();
    of_experts.expect_step(trainer.params.expert, trainer.grads.expert, state);
    optim::expect_step(stages.router, trainer.params.gate, trainer.grads.gate, state.router);
    of_experts.step(ctx, trainer.params.expert, trainer.grads.expert, state);
    stages.router.step(ctx, trainer.params.gate, trainer.grads.gate, state.router);
    adapt_params(ctx, trainer.params.gate, trainer.grads.gate);
    return losses;
  }

  /// Lists the tensors that a checkpoint stores; `counters` lists the numbers (train/checkpoint.hpp).
  static void each(auto&& f, auto&... r) {
    f("params", r.trainer.params...);
    f("optimizer", r.state...);
  }
  static void counters(auto&& f, auto&... r) {
    f("seed", r.trainer.seed.value...);
    f("skipped", r.skipped...);
  }
  C& context() const { return trainer.context(); }

  Trainer trainer;
  StagesT stages;
  State state;
  NotFinite not_finite = NotFinite::throws;
  // Number of training steps that changed no parameter, because a loss or gradient was not finite.
  Index skipped = 0;

 private:
  const bool shared_;

  State begin() const {
    stages.of_experts().validate("ThreeStage", "stages.");
    return {stages.of_experts().begin(trainer.context(), trainer.params.expert),
            stages.router.begin(trainer.context(), trainer.params.gate)};
  }
  void for_each_attention(Expert& pack, const auto& f) const {
    for_each_tensor(
        [&](const Name& name, auto& t) {
          if (stages.attends(name)) f(t);
        },
        pack);
  }
};
template <class C, class M, class L, class S>
ThreeStage(C&, M, L, S, Seed) -> ThreeStage<float, C, M, L, S>;
template <class C, class M, class L, class S, class T>
ThreeStage(C&, M, L, S, Seed, Element<T>) -> ThreeStage<T, C, M, L, S>;

/// The options of ThreeStage: the lengths of its three training stages, and the optimizers.
/// @param first, second  T₁ and T₂, the last epochs of stages I and II; equal numbers leave stage II out
/// @param ffn, attention, fine  the optimizers of stages I, II and III
/// @param router  the optimizer of the gate, in every stage
/// @param shared_attention  if true, all experts share one attention and differ only in the other tensors. This is the
///                          baseline of paper 000's fig. 4, a mixture of feed-forward networks
/// @param attends  returns whether the tensor of this name belongs to attention, see InStages; names are relative to
///                 the parameters of the expert
template <class FfnT = optim::NormalizedGd, class AttentionT = optim::Sgd, class FineT = optim::Sgd,
          class RouterT = optim::Sgd>
struct Stages {
  Index first = 0, second = 0;
  FfnT ffn{};
  AttentionT attention{};
  FineT fine{};
  RouterT router{};
  bool shared_attention = false;
  bool (*attends)(const Name&) = is_attention;

  InStages<FfnT, AttentionT, FineT> of_experts() const { return {first, second, ffn, attention, fine, attends}; }
};
template <class F = optim::NormalizedGd, class A = optim::Sgd, class E = optim::Sgd, class R = optim::Sgd>
Stages(Index, Index, F = {}, A = {}, E = {}, R = {}, bool = {}, bool (*)(const Name&) = {})
    -> Stages<optim::OrNoOptimizer<F>, optim::OrNoOptimizer<A>, optim::OrNoOptimizer<E>, optim::OrNoOptimizer<R>>;

namespace functor {

/// Gives all experts the same gradient: replaces g[e, j] of every expert e by the sum Σ_e' g[e', j] over all experts
/// e', in ascending order. j is the index of an element.
template <class T>
struct SumOverExperts {
  Index experts, slice;
  T* g;
  GATEFOLD_HD void operator()(Index j) const {
    T sum = 0;
    for (Index e = 0; e < experts; ++e) sum += g[e * slice + j];
    for (Index e = 0; e < experts; ++e) g[e * slice + j] = sum;
  }
};

}  // namespace functor

}  // namespace gatefold
