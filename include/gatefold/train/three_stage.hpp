#pragma once

#include <utility>

#include "gatefold/backend/initial.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/train/parameter_group.hpp"
#include "gatefold/train/routed_trainer.hpp"

namespace gatefold {

namespace fn {

/// g[e, j] = Σ_e' g[e', j] for all e, in ascending order of e'
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

}  // namespace fn

/// Whether a tensor belongs to the attention of an expert: its name is `key_query`, or it stands below a part whose name
/// begins with `attention`.
inline bool is_attention(const Name& name) {
  for (const Name* at = &name; at; at = at->parent)
    if (at->part == "key_query" || at->part.starts_with("attention")) return true;
  return false;
}

/// Who learns when, and by which optimizer.
/// @param first, second  T₁ and T₂, the last epochs of stages I and II; equal numbers leave stage II out
/// @param ffn, attention, fine  the optimizers of stages I, II and III
/// @param router  the optimizer of the gate, in every stage
/// @param shared_attention  one attention for all experts: experts differ in the rest alone. The baseline of paper 000's
///                          fig. 4, a mixture of feed-forward networks
template <class FfnT = optim::NormalizedGd, class AttentionT = optim::Sgd, class FineT = optim::Sgd, class RouterT = optim::Sgd>
struct Stages {
  Index first = 0, second = 0;
  FfnT ffn{};
  AttentionT attention{};
  FineT fine{};
  RouterT router{};
  bool shared_attention = false;
};
template <class F, class A, class E, class R>
Stages(Index, Index, F, A, E, R) -> Stages<F, A, E, R>;
template <class F, class A, class E, class R>
Stages(Index, Index, F, A, E, R, bool) -> Stages<F, A, E, R>;

/// Training of a mixture of transformers in three stages, the router in all of them.
///
///     I    t ≤ T₁         W ← ffn(W, ∇L_e)            W: what is not attention; W_i − η G_i / ‖G_i‖_F        (1)
///     II   T₁ < t ≤ T₂    W_KQ ← attention(W_KQ, ∇L_e)                                                   (2)
///     III  T₂ < t         W ← fine(W, ∇L_e)                                                              (3)
///     always              Θ ← router(Θ, ∇L_r)                                                            (4)
///
/// L_e and L_r are those of RoutedTrainer. All gradients of a step are taken before anything moves. (The paper's listing
/// moves W before Θ and does not say at which W the gradient of Θ is taken.)
/// Source: paper 000, algorithm 1, eqs. (6), (8) to (10).
/// @param stages  see Stages; an epoch is one call of begin_epoch and any number of steps
/// @throws ArgumentError unless 0 <= first <= second, and in a step that no epoch has begun
/// @cost   forward and backward of the mixture and two optimizer steps; no allocation after the first step of each stage
template <class T, class C, class MixtureT, class LossT, class StagesT>
class ThreeStage {
  using Trainer = RoutedTrainer<T, C, MixtureT, LossT>;
  using B = typename C::Backend;
  using Expert = decltype(Trainer::Params::expert);
  using Gate = decltype(Trainer::Params::gate);
  template <class O, class Pack>
  using Of = decltype(std::declval<const O&>().begin(std::declval<C&>(), std::declval<const Pack&>()));

 public:
  using Losses = typename Trainer::Losses;
  using Target = typename Trainer::Target;
  using Extra = typename Trainer::Extra;
  /// The states of the four optimizers; of the tensors that one does not step its state holds empty ones.
  struct State {
    Of<decltype(StagesT::ffn), Expert> ffn;
    Of<decltype(StagesT::attention), Expert> attention;
    Of<decltype(StagesT::fine), Expert> fine;
    Of<decltype(StagesT::router), Gate> router;
    template <class F, class... S>
    static void each(F&& f, S&... s) {
      f("ffn", s.ffn...);
      f("attention", s.attention...);
      f("fine", s.fine...);
      f("router", s.router...);
    }
  };

  ThreeStage(C& ctx, const MixtureT& mixture, const LossT& loss, const StagesT& of_parts, Seed seed, Element<T> = {})
      : trainer(ctx, mixture, loss, seed),
        stages(of_parts),
        attention_(trainer.params.expert, is_attention),
        rest_(trainer.params.expert, [](const Name& name) { return !is_attention(name); }) {
    expect(stages.first >= 0, "ThreeStage", "stages.first", "at least 0", stages.first);
    expect(stages.second >= stages.first, "ThreeStage", "stages.second", Joined{"at least stages.first = ", stages.first},
           stages.second);
    const auto begins = [&](const auto& optimizer) { return [&](auto& p) { return optimizer.begin(ctx, p); }; };
    state.ffn = rest_.only(begins(stages.ffn), trainer.params.expert);
    state.attention = attention_.only(begins(stages.attention), trainer.params.expert);
    state.fine = rest_.only(begins(stages.fine), trainer.params.expert);
    state.router = stages.router.begin(ctx, trainer.params.gate);
    if (stages.shared_attention)
      for_each_attention(trainer.params.expert, [&](auto& t) {
        if (t.size() > 0) repeat_first(ctx, t.extent(0), t.size() / t.extent(0), t.view());
      });
  }

  /// Epochs count from 1.
  void begin_epoch() { ++epoch_; }
  /// Go on after `epoch`, when trainer.params and state have been copied back: the run is then what it would have been.
  void resume_after(Index epoch) { epoch_ = epoch; }
  Index epoch() const { return epoch_; }
  /// 1, 2 or 3.
  int stage() const { return epoch_ <= stages.first ? 1 : epoch_ <= stages.second ? 2 : 3; }

  /// One step of the present stage, on all data or a batch. Returns the losses before it.
  Losses step(In<T, 2, B> x, Target target, const Extra& extra = {}) {
    expect(epoch_ >= 1, "ThreeStage.step", "epoch", "at least 1 (call begin_epoch first)", epoch_);
    const Losses losses = trainer.gradients(x, target, extra);
    C& ctx = trainer.context();
    if (stages.shared_attention)
      for_each_attention(trainer.grads.expert, [&](auto& t) {
        if (t.size() > 0)
          B::for_each(ctx, t.size() / t.extent(0), fn::SumOverExperts<T>{t.extent(0), t.size() / t.extent(0), t.data()});
      });
    const auto steps = [&](const auto& optimizer, auto& of) {
      return [&](auto& p, auto& g) { optimizer.step(ctx, p, g, of); };
    };
    Expert &p = trainer.params.expert, &g = trainer.grads.expert;
    switch (stage()) {
      case 1: rest_.only(steps(stages.ffn, state.ffn), p, g); break;
      case 2: attention_.only(steps(stages.attention, state.attention), p, g); break;
      default: rest_.only(steps(stages.fine, state.fine), p, g);
    }
    stages.router.step(ctx, trainer.params.gate, trainer.grads.gate, state.router);
    adapt(ctx, trainer.params.gate, trainer.grads.gate);
    return losses;
  }

  Trainer trainer;
  StagesT stages;
  State state;

 private:
  template <class F>
  static void for_each_attention(Expert& pack, const F& f) {
    for_each_tensor([&](const Name& name, auto& t) { if (is_attention(name)) f(t); }, pack);
  }

  Index epoch_ = 0;
  ParameterGroup<Expert> attention_, rest_;
};
template <class C, class M, class L, class S>
ThreeStage(C&, M, L, S, Seed) -> ThreeStage<float, C, M, L, S>;
template <class C, class M, class L, class S, class T>
ThreeStage(C&, M, L, S, Seed, Element<T>) -> ThreeStage<T, C, M, L, S>;

}  // namespace gatefold
