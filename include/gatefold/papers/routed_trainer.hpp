#pragma once

#include <utility>

#include "gatefold/expert/positions.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/rounded_weights.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/optim/clone.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/train/not_finite.hpp"
#include "gatefold/train/not_trained.hpp"

namespace gatefold {

/// Computes the losses and gradients of a mixture whose router (gate) and experts learn from different losses: L_r for
/// the router, L_e for the experts. ℓ is the loss of one item with target t[n], f[n] the output of the expert picked
/// for it, and π[n] the weight of this pick.
///
///     L_r = (1/N) Σ_n ℓ(t[n], π[n] f[n]),   ∇ of the gate from L_r                                      (1)
///     L_e = (1/N) Σ_n ℓ(t[n], f[n]),        ∇ of the experts from L_e                                   (2)
///     L_e = L_r, with weighted_experts                                                                  (3)
///
/// Both gradients are taken at the same parameters. Let θ_i be the weights of a softmax router and W_i the weights of
/// expert i, m_n the expert picked for item n, and x_l the vectors of the item. With the logistic loss, the gradients
/// of (1) and (2) are
///
///     ∇θ_i = (1/N) Σ_n ℓ'(t f π) t f π (1[i = m_n] − π_i) Σ_l x_l,   Σ_i ∇θ_i = 0                       (4)
///     ∇W_i = (1/N) Σ_{n → i} ℓ'(t f) t ∂f/∂W_i                                                          (5)
///
/// Source: paper 000, eqs. (5) and (7), lemmas 2 to 4; (3) is paper 003, eq. (4). If an item has several picks, f is
/// the sum of their outputs; without picks it is 0. Auxiliary losses of the gate add to ∇ of the gate, so (4) does not
/// apply to a gate with auxiliary losses. The struct Losses does not include auxiliary losses.
/// @param extra  extra inputs of the mixture, for example the noise of the router
/// @throws ArgumentError unless x is [N, in_dim] and `target` and `extra` match x; this class never changes parameters
/// @cost   forward and backward of the mixture; no allocation after the first batch of a size
template <class T, class C, class MixtureT, class LossT>
class RoutedTrainer {
  using B = typename C::Backend;
  GATEFOLD_REQUIRE(
      requires(const MixtureT& of_experts) { of_experts.filled_gate(); },
      "gatefold: a RoutedTrainer or ThreeStage takes a Mixture{gate, expert}, in one process; train a branch on shards "
      "(dist::ExpertParallel) with a Trainer; see docs/how-to/distributed.md");
  GATEFOLD_REQUIRE(
      requires(gatefold::Plan<decltype(std::declval<const MixtureT&>().filled_gate()), T, B> plan) { plan.item_slots; },
      "gatefold: a RoutedTrainer or ThreeStage takes a gate that picks experts for each item; train a gate that mixes "
      "items, for example SoftMoe, with a Trainer");
  GATEFOLD_REQUIRE(!detail_::named::Params<LossT>(),
                   "gatefold: the loss of a RoutedTrainer or ThreeStage must not have parameters; use a Trainer for a "
                   "loss with parameters");

 public:
  using Extra = gatefold::Extra<MixtureT, T, B>;
  using Params = gatefold::Params<MixtureT, T, B>;
  using Target = typename LossT::template Target<T, B>;
  /// The two losses of a batch: the loss that trains the router, and the loss that trains the experts.
  struct Losses {
    double router = 0, experts = 0;
  };

  RoutedTrainer(C& ctx, const MixtureT& of_experts, const LossT& of_outputs, Seed of_run, bool weighted = false,
                Element<T> = {})
      : mixture(of_experts),
        loss(of_outputs),
        weighted_experts(weighted),
        ctx_(ctx),
        params(init_params<T, B>(mixture, ctx, of_run)),
        grads(gradients_like(ctx, params)),
        seed(of_run) {
    const auto here = ctx_.here();
    value_.resize(3);
  }
  /// Takes the element type directly after the seed, as Trainer's constructor does, and not as the last argument.
  RoutedTrainer(C& ctx, const MixtureT& of_experts, const LossT& of_outputs, Seed of_run, Element<T> element,
                bool weighted = false)
      : RoutedTrainer(ctx, of_experts, of_outputs, of_run, weighted, element) {}
  RoutedTrainer(const RoutedTrainer& other) : RoutedTrainer(optim::refuse_copy(other)) {}
  RoutedTrainer(RoutedTrainer&&) = default;

  /// Runs forward and backward on a batch. Returns the losses and overwrites `grads` with the gradients. A batch
  /// without items has losses and gradients of 0. Before you update parameters, check all_finite(ctx, grads).
  Losses gradients(In<T, 2, B> x, Target target, const Extra& extra = {}) {
    const auto here = ctx_.here();
    backward(x, target, extra);
    return losses(target);
  }

  /// Returns the losses of a batch without computing gradients. Overwrites the stored outputs and the plan (the picks
  /// of the gate).
  Losses evaluate(In<T, 2, B> x, Target target, const Extra& extra = {}) {
    const auto here = ctx_.here();
    forward(x, target, extra);
    return losses(target);
  }

  /// The compiler chooses these overloads for calls with wrong arguments, for example without a target. Such a call
  /// does not compile, and a static_assert shows the correct arguments.
  void gradients(
      detail_::policy::Misuse<"gatefold: gradients takes items and their target, trainer.gradients(x, target)">);
  void evaluate(
      detail_::policy::Misuse<"gatefold: evaluate takes items and their target, trainer.evaluate(x, target)">);

  /// Lists the tensors that a checkpoint stores; `counters` lists the numbers (train/checkpoint.hpp).
  GATEFOLD_PACK(params)
  static void counters(auto&& f, auto&... r) { f("seed", r.seed.value...); }

  /// Returns a view of the outputs of the last batch, π f [N, out_dim], with π the weight of the picked expert and f
  /// its output. The next batch overwrites the values and can make the view invalid.
  View<const T, 2, B> output() const {
    const auto here = ctx_.here();
    return y_;
  }
  /// Returns a view of the expert outputs of the last batch, f [N, out_dim], which are not multiplied by the weights of
  /// the gate. The next batch overwrites the values and can make the view invalid.
  View<const T, 2, B> expert_output() const {
    const auto here = ctx_.here();
    return f_;
  }
  C& context() const { return ctx_; }

  MixtureT mixture;
  LossT loss;
  bool weighted_experts;
  bool keeps_rounded = true;  // keeps rounded copies of weights, see Trainer::keeps_rounded

 private:
  C& ctx_;

 public:
  Params params, grads;
  gatefold::Saved<MixtureT, T, B> saved;
  Seed seed;

 private:
  template <class, class, class, class, class>
  friend class ThreeStage;

  void backward(View<const T, 2, B> x, Target target, const Extra& extra) {
    expect_like("RoutedTrainer.gradients", "grads", params, grads);
    rounded_.run(ctx_, params, {.keep = keeps_rounded}, [&] { run_backward(x, target, extra); });
  }
  void run_backward(View<const T, 2, B> x, Target target, const Extra& extra) {
    forward(x, target, extra);
    set_zero_later(ctx_, grads);
    auto mark = ctx_.mark();
    const auto in = saved.plan.dispatched(x);
    auto dplan = saved.plan.grad(ctx_);
    auto dloss = ctx_.template scratch<T>(x.extent(0), mixture.out_dim());
    auto dz = ctx_.template scratch<T>(in.groups.slots, mixture.out_dim());
    View<T, 2, B> dslots{};
    if constexpr (!detail_::hook::any::items_adjoint_is_optional<decltype(mixture.expert)>())
      dslots = ctx_.template scratch<T>(in.groups.slots, mixture.in_dim());
    if constexpr (!detail_::hook::any::items_adjoint_is_optional<decltype(mixture.filled_gate())>()) {
      dx_.resize(x.extent(0), mixture.in_dim());
      set_zero(ctx_, dx_);
    }
    loss.template backward<T, B>(ctx_, y_, target, dloss);
    saved.plan.combine_backward(ctx_, saved.z, dloss, dz, dplan);
    if (!weighted_experts) {
      loss.template backward<T, B>(ctx_, f_, target, dloss);
      take_rows<C, T, B>(ctx_, in.groups, dloss, dz);
    }
    mixture.drawing_experts(extra).backward(ctx_, params.expert, in.groups, in.x, saved.expert, dz, dslots,
                                            grads.expert);
    gatefold::ExtraGrad<MixtureT, T, B> unused{};
    mixture.filled_gate().backward(ctx_, params.gate, x, saved.plan, saved.gate, dplan, dx_, grads.gate,
                                   mixture.of_gate(extra), unused);
    write_zeros(grads);
  }
  void forward(View<const T, 2, B> x, Target target, const Extra& extra) {
    expect_shape("RoutedTrainer", "x", x, {any_extent, mixture.in_dim()});
    y_.resize(x.extent(0), mixture.out_dim());
    f_.resize(x.extent(0), mixture.out_dim());
    detail_::loss::validate_target<T, B>("RoutedTrainer", loss, x.extent(0), y_, target);
    mixture.validate(params, x.extent(0), extra);
    auto& plan = saved.plan;
    mixture.filled_gate().forward(ctx_, params.gate, x, plan, saved.gate, mixture.of_gate(extra));
    const auto in = plan.dispatch(ctx_, x);
    // The experts are called directly, because Mixture::forward does not always save their outputs z.
    saved.z.resize(in.groups.slots, mixture.out_dim());
    mixture.drawing_experts(extra).forward(ctx_, params.expert, in.groups, in.x, saved.z, saved.expert);
    plan.combine(ctx_, saved.z, y_);
    B::for_rows(ctx_, x.extent(0),
                functor::Combine<T, B>{plan.item_offsets, plan.item_slots, plan.pick, {}, saved.z, f_, false});
  }
  /// Returns the losses of the last forward pass, and the result of the check of the gradients.
  /// @param measured  total from optim::measure_finite, on the device; null if gradients are not checked
  /// @param finite    out  whether all gradients are finite; null if `measured` is null
  Losses losses(Target target, const double* measured = nullptr, bool* finite = nullptr) {
    T values[3];
    loss.template forward<T, B>(ctx_, y_, target, value_.view().rows(1, 1));
    if (!weighted_experts) loss.template forward<T, B>(ctx_, f_, target, value_.view().rows(2, 1));
    if (measured) B::for_each(ctx_, 1, functor::Verdict<T>{measured, value_.data()});
    B::to_host(ctx_, weighted_experts ? 2 : 3, std::as_const(value_).data(), values);
    if (finite) *finite = values[0] == 0;
    return {static_cast<double>(values[1]), static_cast<double>(values[weighted_experts ? 1 : 2])};
  }

  Tensor<T, 2, B> y_, f_, dx_;  // [N, out_dim]; dx_ [N, in_dim]
  // Three numbers: 0 if all gradients are finite (otherwise 1), the loss of the router, and the loss of the experts.
  Tensor<T, 1, B> value_;
  RoundedWeights<B> rounded_;
};
template <class C, class M, class L>
RoutedTrainer(C&, M, L, Seed, bool = false) -> RoutedTrainer<float, C, M, L>;
template <class C, class M, class L, class T>
RoutedTrainer(C&, M, L, Seed, bool, Element<T>) -> RoutedTrainer<T, C, M, L>;
template <class C, class M, class L, class T>
RoutedTrainer(C&, M, L, Seed, Element<T>, bool = false) -> RoutedTrainer<T, C, M, L>;

}  // namespace gatefold
