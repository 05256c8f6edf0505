#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/rounded_weights.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/optim/clone.hpp"
#include "gatefold/train/not_finite.hpp"
#include "gatefold/train/not_trained.hpp"

namespace gatefold {

/// Trains a model. It owns the parameters, gradients, optimizer state, saved values and carry of a run.
///
///     params ← optimizer(params, ∇ (loss(model(x), target) + auxiliary losses))                         (1)
///
/// Parameters, gradients, optimizer state and saved values are public members. You can write the same loop with the
/// public functions of the layer, the loss and the optimizer. Before the optimizer writes, the trainer checks that loss
/// and gradients are finite. If the optimizer computes the norm of the gradients (Clipped, NormalizedGd), the check
/// uses this norm; otherwise it reads the gradients once. If the loss has parameters (loss/loss.hpp), `params` contains
/// them in addition to the parameters of the model. If the model is a branch, for example a Mixture, the trainer trains
/// NoResidual{model}, so the parameters of the branch are `params.branch`.
///
/// If products of experts round their factors (CudaBf16), the weights are rounded once for all products of a step,
/// before the first part of its batch (see `accumulate`). The weights are rounded again before a later part if they
/// were accessed for writing after the previous rounding. With `keeps_rounded = false`, each product rounds the weights
/// again; the results have the same bits.
///
/// Only one thread at a time can use a Trainer or its context. While one thread runs a function that uses the context,
/// calls of these functions on other threads throw ArgumentError and change nothing. Public members, returned views,
/// and the functions that only return a member (`model`, `layer`, `context`, `not_trained`) are not guarded. To serve
/// while training runs, give the serving thread its own context and a copy of `params`.
/// @param of_run  seed of the initial parameters. It is kept as `seed`, and `noise()` draws from it
/// @param except  the parameters that are not trained; by default all are trained
/// @throws ArgumentError if an argument has a wrong shape or an option is invalid. Parameters and state are then
///         unchanged. Accumulated parts are kept, unless the optimizer's step throws the error. NotFiniteError if a
///         loss or gradient is not finite (see `not_finite`). Parameters and state are then unchanged, and accumulated
///         parts are dropped. `accumulate` does not check for finite values: it returns a loss of NaN or ∞, and the
///         following step throws. After a DeviceError, check `waiting()`, because accumulated parts can be lost. If the
///         optimizer had begun its step (state.step or a parameter has changed), the run can only continue from a
///         checkpoint
/// @cost   forward, backward and one optimizer step; no allocation after the first step of the same size. The host
///         waits for the backend once, between backward and the optimizer
template <class T, class C, class ModelT, class LossT, class OptimizerT>
class Trainer {
  using B = typename C::Backend;
  using Layer = AsLayer<ModelT, T, B>;
  using Loss = detail_::loss::Of<LossT, gatefold::Params<Layer, T, B>, T, B>;

 public:
  using Items = gatefold::Items<Layer, T, B>;
  using Extra = gatefold::Extra<Layer, T, B>;
  using Params = typename Loss::Learned;  // parameters of the model, or ModelAndLoss if the loss has parameters too
  using Target = typename Loss::Target;
  static_assert(optim::check<OptimizerT, C, Params>());
  GATEFOLD_REQUIRE((detail_::hook::loss::no_batch<LossT>() ==
                    detail_::hook::optimizer::reduce<const OptimizerT, C, Params>()),
                   "gatefold: on shards a Trainer needs both dist::LossOfShards{loss, &shard} and "
                   "dist::DataParallel{optimizer, &shard}; see docs/how-to/distributed.md");

  Trainer(C& ctx, const ModelT& model, const LossT& of_outputs, const OptimizerT& of_params, Seed of_run,
          Element<T> = {}, const NotTrained& except = {})
      : loss(of_outputs),
        optimizer(of_params),
        ctx_(ctx),
        layer_(as_layer<T, B>(model)),
        params(Loss::init(loss, ctx, of_run.fork(loss_stream), init_params<T, B>(layer_, ctx, of_run))),
        trained_(params, except),
        grads(trained_.gradients(ctx, params)),
        state(trained_.only([&](Params& p) { return optimizer.begin(ctx, p); }, params)),
        seed(of_run) {
    optim::validate_options(optimizer);
    expect(detail_::named::reduce<OptimizerT>() || !holds_sharded(params), "Trainer", "optimizer",
           "dist::DataParallel around it and dist::LossOfShards around the loss, because the experts of the model are "
           "distributed over shards",
           "an optimizer without DataParallel");
    const auto here = ctx_.here();
    value_.resize(2);
  }
  Trainer(C& ctx, const ModelT& model, const LossT& of_outputs, const OptimizerT& of_params, Seed of_run,
          const NotTrained& except, Element<T> element = {})
      : Trainer(ctx, model, of_outputs, of_params, of_run, element, except) {}

  Trainer(const Trainer& other) : Trainer(optim::refuse_copy(other)) {}
  Trainer(Trainer&&) = default;

  /// Makes one training step on a batch and on all parts that `accumulate` has added. Returns the loss (2) of the batch
  /// and these parts (see `accumulate`), which is computed before the step and without auxiliary losses (see
  /// `auxiliary`). If the batch has no items, the step uses only the accumulated parts. If there are no parts either,
  /// `step` returns 0 and changes nothing. A batch whose targets are all ignored is still a step: its loss is 0, its
  /// gradient is only the gradient of the auxiliary losses, and the optimizer counts the step.
  double step(Items x, Target target, const Extra& extra = {}) {
    const auto here = ctx_.here();
    if (!expect_batch("Trainer.step", x, target) && waiting_.parts == 0) return 0;
    add_part(x, target, for_training(extra), waiting_.parts == 0 ? 1 : weight_of(x, target));
    const Waiting taken = std::exchange(waiting_, {});
    if (taken.weight != taken.unit) detail_::loss::scale(ctx_, taken.unit / taken.weight, grads);

    auto mark = ctx_.mark();
    optim::reduce_gradients(optimizer, ctx_, grads);
    double value = 0;
    const auto step_finite = [&](Params& p, Params& g) {
      const auto measured = optim::measure_gradients(optimizer, ctx_, g);
      B::for_each(ctx_, 1, functor::Verdict<T>{measured.total, value_.data() + 1});
      T found[2];
      B::to_host(ctx_, 2, std::as_const(value_).data(), found);
      value = taken.mean(static_cast<double>(found[0]));
      if (!functor::is_finite(value) || found[1] != 0) {
        if (not_finite == NotFinite::throws)
          throw_not_finite("Trainer.step", ctx_, value, g,
                           place_not_finite(ctx_, "x", x) + place_not_finite(ctx_, "target", target));
        ++skipped;
        return false;
      }
      optim::measured_step(optimizer, ctx_, p, g, state, measured);
      return true;
    };
    if (trained_.only(step_finite, params, grads)) trained_.adapt(ctx_, params, grads);
    return value;
  }
  /// Computes the gradient of a part of a batch, and keeps it for the next step (gradient accumulation). Returns the
  /// loss of the part. A batch that does not fit into memory can be split into parts. Call `accumulate` for every part
  /// except the last:
  ///
  ///     for (Index i = 0; i + 1 < parts; ++i) trainer.accumulate(x[i], target[i], extra[i]);
  ///     const double loss = trainer.step(x[parts - 1], target[parts - 1], extra[parts - 1]);
  ///
  ///     L = Σ_i n_i L_i / Σ_i n_i,   ∇L likewise,   n_i: number of counted targets of part i              (2)
  ///
  /// (2) is the loss of the whole batch if the loss is a mean over its targets. Targets that the loss ignores are not
  /// counted in n_i. Auxiliary losses depend on which items are routed together. Each part contributes its own
  /// auxiliary losses, averaged with the weights n_i. A part without counted targets contributes nothing. If no part
  /// has counted targets, only the auxiliary losses of the last part remain. Checkpoints do not include accumulated
  /// parts. A run that loads a checkpoint drops its accumulated parts.
  /// @cost  forward and backward; the host waits for the backend once, or twice if a loss ignores targets
  double accumulate(Items x, Target target, const Extra& extra = {}) {
    const auto here = ctx_.here();
    if (!expect_batch("Trainer.accumulate", x, target)) return 0;
    const double weight = weight_of(x, target);
    add_part(x, target, extra, weight);
    const double value = host_value();
    waiting_.losses += Waiting::weighted(weight, value);
    return value;
  }
  /// Drops the gradients of the accumulated parts of a batch. Call it if you used `accumulate` to compute a gradient
  /// without a step.
  void forget() {
    const auto here = ctx_.here();
    waiting_ = {};
  }
  /// Returns the number of accumulated parts of a batch. The next step will use their gradients.
  Index waiting() const {
    const auto here = ctx_.here();
    return waiting_.parts;
  }

  /// Computes y = model(x), without saving values for backward.
  void infer(Items x, Out<T, 2, B> y, const Extra& extra = {}) {
    const auto here = ctx_.here();
    expect_items("Trainer.infer", layer_, x);
    layer_.begin(ctx_, model(), x.extent(0), carry_);
    gatefold::infer<T, B>(layer_, ctx_, model(), x, carry_, y, extra);
  }
  /// Returns the loss on a batch, without auxiliary losses. Makes no step.
  double evaluate(Items x, Target target, const Extra& extra = {}) {
    const auto here = ctx_.here();
    expect_items("Trainer.evaluate", layer_, x);
    y_.resize(x.extent(0), layer_.out_dim());
    detail_::loss::validate_target<T, B>("Trainer.evaluate", loss, x.extent(0), y_, target);
    infer(x, y_, extra);
    Loss::forward(loss, ctx_, params, y_, target, value_.view().rows(0, 1), loss_saved_);
    return host_value();
  }

  template <class X, class Y, class E, class Other>
  using IfNoBatch = std::enable_if_t<!std::is_convertible_v<X, Items> || !std::is_convertible_v<Y, Other> ||
                                     !std::is_convertible_v<const E&, const Extra&>>;
// Declares overloads of `function` that the compiler chooses if the arguments are not a batch of this Trainer, or if
// the second argument is missing. They do not compile, and a static_assert describes the mistake.
#define GATEFOLD_REFUSE_BATCH(function, Other, OneTarget, missing)                              \
  template <class X, class Y, class E = Extra, class = IfNoBatch<X, Y, E, GATEFOLD_BARE Other>> \
  double function(X&&, Y&&, const E& = {}) {                                                    \
    return refuse_batch<X, E, OneTarget>();                                                     \
  }                                                                                             \
  void function(detail_::policy::Misuse<missing>)
  GATEFOLD_REFUSE_BATCH(step, (Target), Y,
                        "gatefold: step takes items and their target, trainer.step(x, target), and optionally extra "
                        "inputs such as noise, a decltype(trainer)::Extra; for outputs without a target use "
                        "trainer.infer(x, y); see docs/how-to/your_data.md");
  GATEFOLD_REFUSE_BATCH(accumulate, (Target), Y,
                        "gatefold: accumulate takes items and their target, trainer.accumulate(x, target); see "
                        "docs/how-to/your_data.md");
  GATEFOLD_REFUSE_BATCH(evaluate, (Target), Y,
                        "gatefold: evaluate takes items and their target, trainer.evaluate(x, target); for outputs "
                        "without a target use trainer.infer(x, y); see docs/how-to/your_data.md");
  GATEFOLD_REFUSE_BATCH(infer, (Out<T, 2, B>), void,
                        "gatefold: infer writes its result to y, which must exist before the call: Tensor<float, 2, "
                        "Cpu> y(N, out_dim); trainer.infer(x, y); see docs/how-to/serving.md");
#undef GATEFOLD_REFUSE_BATCH

  /// Returns the auxiliary losses (losses of the gates) of the last batch or part, weighted and summed over all
  /// mixtures.
  double auxiliary() const {
    const auto here = ctx_.here();
    double total = 0;
    for_each_mixture(saved, [&](const auto& mixture) {
      if constexpr (requires { mixture.gate.auxiliary.data(); }) {
        const auto& values = mixture.gate.auxiliary;
        for (Index i = 0; i < values.size(); ++i) {
          T v = 0;
          B::to_host(ctx_, 1, values.data() + i, &v);
          total += static_cast<double>(v);
        }
      }
    });
    return total;
  }

  /// Lists the tensors and numbers that a checkpoint contains (train/checkpoint.hpp).
  static void each(auto&& f, auto&... r) {
    f("params", r.params...);
    f("optimizer", r.state...);
  }
  static void counters(auto&& f, auto&... r) {
    f("seed", r.seed.value...);
    f("skipped", r.skipped...);
  }

  /// Returns the random numbers of the next step or part, for example for noise of gates and dropout. They differ from
  /// the random numbers of the initial parameters. Each step, taken or skipped, and each part has different numbers.
  /// All shards have the same numbers; use `.at(shard.index())` for different numbers on each shard.
  Random noise() const {
    const auto here = ctx_.here();
    const Seed of_try = seed.fork(noise_stream).fork(static_cast<std::uint64_t>(skipped));
    return {of_try.fork(static_cast<std::uint64_t>(waiting_.parts)), static_cast<std::uint64_t>(state.step)};
  }
  /// Returns the parameters of the model, without the parameters of the loss.
  const auto& model() const { return Loss::model(params); }
  /// Returns the output of the model in the last step, accumulated part of a batch, or evaluation. The next step, part
  /// or evaluation overwrites the output or reallocates its memory.
  View<const T, 2, B> output() const {
    const auto here = ctx_.here();
    return y_;
  }
  /// Returns the names of the parameters that are not trained.
  const std::vector<std::string>& not_trained() const { return trained_.not_trained(); }
  const Layer& layer() const { return layer_; }
  C& context() const { return ctx_; }

  // Numbers of the random streams for the parameters of the loss and for noise. Both streams are derived from the seed.
  // The parts of a model use streams with other numbers.
  static constexpr std::uint64_t loss_stream = 0x6c6f7373, noise_stream = 0x6e6f6973;
  LossT loss;
  OptimizerT optimizer;
  NotFinite not_finite = NotFinite::throws;
  Index skipped = 0;  // number of steps skipped because the loss or a gradient was not finite
  /// If true, the trainer keeps rounded copies of the weights of experts (2 bytes per weight). In this case, do not
  /// write weights between the parts of a step through a view that you took before the step, because the trainer does
  /// not detect such writes. If false, each product rounds the weights that it reads, and no memory is used for copies.
  bool keeps_rounded = true;

 private:
  C& ctx_;
  Layer layer_;

 public:
  Params params;

 private:
  detail_::not_trained::Trained<C, Params> trained_;  // which tensors of params are trained

 public:
  /// The gradient of the last step. The optimizer can have changed it in place: clipped it, or summed it over shards.
  /// After `accumulate`, `grads` is Σ_i n_i ∇L_i / n over the accumulated parts i, with n_i counted targets each. n is
  /// the last n_i that is not 0, so for one part `grads` is ∇L. On shards, `grads` has only the terms of this shard
  /// until dist::all_reduce adds up the terms of all shards. If a tensor is not trained and its policy declares
  /// `gradient_is_optional`, its gradient is skipped (Tensor.skip). Without this declaration, the gradient exists, but
  /// is not used.
  Params grads;
  decltype(std::declval<const OptimizerT&>().begin(std::declval<C&>(), std::declval<const Params&>())) state;
  gatefold::Saved<Layer, T, B> saved;
  Seed seed;

 private:
  template <class X, class E, class Y>
  static double refuse_batch() {
    // Whether the arguments have one target for a loss with several tasks.
    constexpr bool one_target = std::is_convertible_v<X, Items> && !std::is_void_v<Y> &&
                                !std::is_convertible_v<Y, Target> && requires(const Target& target) {
      std::get<1>(target);
    };
    GATEFOLD_REQUIRE((std::is_convertible_v<const E&, const Extra&>),
                     "gatefold: these extra inputs belong to another model, element type or backend: use "
                     "decltype(trainer)::Extra; see docs/reference/inputs.md");
    GATEFOLD_REQUIRE(
        !one_target,
        "gatefold: a MultiTask takes one target for each of its tasks, in braces: trainer.step(x, {prices, "
        "labels}); see docs/how-to/tabular.md");
    GATEFOLD_REQUIRE(
        (!std::is_convertible_v<const E&, const Extra&> || std::is_void_v<X> || one_target),
        "gatefold: a Trainer takes views of its own element type and backend, not of temporaries: rows x [N, in_dim] "
        "of float (of double after Element<double>{}), ids and labels of gatefold::Index (std::int64_t), copied by "
        "transfer if they are on a device; y of infer must not be const; see docs/how-to/your_data.md");
    return 0;
  }
  /// The accumulated parts of a batch. Part i has n_i counted targets, the loss L_i and the gradient ∇L_i. `grads`
  /// contains Σ_i n_i ∇L_i / unit.
  struct Waiting {
    Index parts = 0;
    // For parts i with n_i counted targets: weight = Σ_i n_i, and unit is the last n_i that is not 0.
    double weight = 0, unit = 0;
    // L_i is the mean loss of part i, and n_i its number of counted targets. losses is Σ_i n_i L_i over the parts that
    // `accumulate` has added, without the batch of `step`. of_latest is n_i of the part that was added last, by
    // `accumulate` or by a later `step`.
    double losses = 0, of_latest = 0;
    double mean(double latest) const {
      if (parts == 1) return latest;
      return weight > 0 ? (losses + weighted(of_latest, latest)) / weight : 0;
    }
    /// Returns the sum of n losses whose mean is `mean`: n · mean. If n is 0 (all targets are ignored), returns 0, even
    /// if the mean is NaN.
    static double weighted(double n, double mean) { return n > 0 ? n * mean : 0; }
  };

  /// Checks the arguments of a step before anything changes. Returns true if the batch has items.
  /// @throws ArgumentError if x or the target is invalid for the model and the loss, or an option is invalid
  bool expect_batch(const char* where, const Items& x, const Target& target) {
    expect_items(where, layer_, x);
    optim::validate_options(optimizer);
    if (detail_::loss::no_batch(loss, x.extent(0))) {
      detail_::loss::validate_target<T, B>(where, loss, 0, Tensor<T, 2, B>(0, layer_.out_dim()), target);
      return false;
    }
    y_.resize(x.extent(0), layer_.out_dim());
    detail_::loss::validate_target<T, B>(where, loss, x.extent(0), y_, target);
    return true;
  }
  double weight_of(const Items& x, const Target& target) {
    return static_cast<double>(detail_::loss::counted<B>(loss, ctx_, x.extent(0), target));
  }
  /// Runs forward and backward for one part of a batch, and adds its gradient to the gradient of the accumulated parts.
  /// The loss stays in memory of the backend.
  void add_part(const Items& x, const Target& target, const Extra& extra, double weight) {
    rounded_.run(ctx_, params, {.keep = keeps_rounded, .written = waiting_.parts == 0},
                 [&] { run_part(x, target, extra, weight); });
  }
  void run_part(const Items& x, const Target& target, const Extra& extra, double weight) {
    y_.resize(x.extent(0), layer_.out_dim());
    dy_.resize(x.extent(0), layer_.out_dim());
    layer_.begin(ctx_, model(), x.extent(0), carry_);
    layer_.forward(ctx_, model(), x, carry_, y_, saved, extra);
    Loss::forward(loss, ctx_, params, y_, target, value_.view().rows(0, 1), loss_saved_);
    Waiting before = std::exchange(waiting_, {});  // if an exception follows, all accumulated parts are dropped
    if (before.weight == 0) {
      set_zero_later(ctx_, grads);
    } else if (weight > 0 && weight != before.unit) {
      detail_::loss::scale(ctx_, before.unit / weight, grads);
    }
    if (before.weight == 0 || weight > 0) {
      Loss::backward(loss, ctx_, params, y_, target, loss_saved_, dy_, grads);
      set_zero(ctx_, carry_);  // the gradient of the last carry is 0, because nothing reads the last carry
      gatefold::backward(layer_, ctx_, model(), x, saved, dy_, carry_, zero_dx(x), Loss::model(grads), extra);
      write_zeros(grads);
      before.unit = weight;
    }
    waiting_ = {before.parts + 1, before.weight + weight, before.unit, before.losses, weight};
  }
  /// Returns memory for dx, the gradient of the items. The trainer does not use dx, but backward writes it.
  ItemsGrad<Layer, T, B> zero_dx([[maybe_unused]] const Items& x) {
    if constexpr (detail_::policy::reads_ids<Layer, T, B>) {
      return {};
    } else {
      dx_.resize(x.extent(0), x.extent(1));
      set_zero(ctx_, dx_);
      return dx_;
    }
  }
  double host_value() {
    T v = 0;
    B::to_host(ctx_, 1, std::as_const(value_).data(), &v);
    return static_cast<double>(v);
  }

  gatefold::Carry<Layer, T, B> carry_;
  gatefold::Saved<LossT, T, B> loss_saved_;
  Tensor<T, 2, B> y_, dy_, dx_;  // y_, dy_ [N, out_dim], dx_ [N, in_dim]
  Tensor<T, 1, B> value_;        // [2] the loss, and a flag: 0 if the gradients are finite, else 1
  RoundedWeights<B> rounded_;    // rounded copies of the weights in params
  Waiting waiting_{};
};

namespace detail_::lookup {

/// Marks the specialisation of Trainer that is deduced if the constructor arguments are wrong. It is the first template
/// argument of this specialisation.
template <class... A>
struct NoTrainer {};

}  // namespace detail_::lookup

/// This specialisation is deduced if the constructor arguments do not fit a Trainer. Its static_assert names the
/// mistake.
template <class... A>
class Trainer<detail_::lookup::NoTrainer<A...>, void, void, void, void> {
  GATEFOLD_REQUIRE(sizeof...(A) == 0,
                   "gatefold: construct a Trainer from these arguments, in this order: Trainer{ctx, model, loss, "
                   "optimizer, Seed{1}}; ctx must be a variable, not a temporary; for double add Element<double>{} "
                   "after the seed; see docs/how-to/your_data.md");

 public:
  explicit Trainer(const A&...) {}
  double step(auto&&...) { return 0; }
  double evaluate(auto&&...) { return 0; }
  void infer(auto&&...) {}
};
template <class C, class... A>
Trainer(C&, A...) -> Trainer<detail_::lookup::NoTrainer<C, A...>, void, void, void, void>;
template <class C, class... A>
Trainer(const C&&, A...) -> Trainer<detail_::lookup::NoTrainer<C, A...>, void, void, void, void>;
template <class C, class M, class L, class O>
Trainer(C&, M, L, O, Seed) -> Trainer<float, C, M, L, O>;
template <class C, class M, class L, class O, class T>
Trainer(C&, M, L, O, Seed, Element<T>) -> Trainer<T, C, M, L, O>;
template <class C, class M, class L, class O>
Trainer(C&, M, L, O, Seed, NotTrained) -> Trainer<float, C, M, L, O>;
template <class C, class M, class L, class O, class F,
          class = std::enable_if_t<std::is_invocable_r_v<bool, const F&, const Name&>>>
Trainer(C&, M, L, O, Seed, F) -> Trainer<float, C, M, L, O>;
template <class C, class M, class L, class O, class T>
Trainer(C&, M, L, O, Seed, NotTrained, Element<T>) -> Trainer<T, C, M, L, O>;
template <class C, class M, class L, class O, class T>
Trainer(C&, M, L, O, Seed, Element<T>, NotTrained) -> Trainer<T, C, M, L, O>;

}  // namespace gatefold
