#pragma once

#include <limits>
#include <type_traits>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

namespace optim {

namespace expert_rates {

bool of_experts(const Name& name);
template <class FactorT>
struct EachExpert;

}  // namespace expert_rates

/// Wraps an optimizer, and gives each expert of a mixture its own learning rate: the optimizer's rate `lr` times a
/// factor. W_e are the weights of expert e.
///
///     W_e ← step of the optimizer at the rate lr · factor(name of W, e)                                  (1)
///
///     // New experts learn, the eight old ones learn slowly.
///     optim::ExpertRates{optim::AdamW{.lr = 1e-3}, [](const Name&, Index e) { return e < 8 ? 0.1 : 1.0; }}
///
/// (1) applies to the tensors of the experts of each mixture. The first dimension of these tensors is the expert e, and
/// their names contain the part `expert`, for example `layers.0.branch.expert.up`. Gates, shared experts and all other
/// tensors use the optimizer's own rate. Moments do not depend on the rate: with a factor of 0, an expert keeps its
/// weights, but its moments are updated. If all factors are 1, the results have the same bits as with the inner
/// optimizer alone.
///
/// Put other wrappers around ExpertRates: Scheduled{optim::Clipped{optim::ExpertRates{…}}, schedule}, InGroups,
/// Averaged.
/// @param optimizer  AdamW or Sgd
/// @param factor     a function or a lambda. It is called on the host in every step, for each expert of each tensor of
///                   experts. Everything that a lambda captures by reference must outlive the run
/// @throws ArgumentError if a factor is negative or not finite, if there is no tensor of experts, if experts are
///         distributed over shards (dist::ExpertParallel), or if the inner optimizer throws it. Nothing has been
///         written then
/// @cost   the cost of the inner optimizer, with one launch for each range of neighbouring experts with the same factor
///         in each tensor
template <Optimizer OptimizerT, class FactorT>
struct ExpertRates {
  using IsOptimizer = void;
  static_assert(check_inside<OptimizerT>());
  GATEFOLD_REQUIRE((std::is_invocable_r_v<double, const FactorT&, const Name&, Index>),
                   "gatefold: ExpertRates{optimizer, factor} takes a function of the tensor's name and the expert: "
                   "optim::ExpertRates{optim::AdamW{}, [](const Name&, Index e) { return e == 3 ? 0.1 : 1.0; }}");
  OptimizerT optimizer;
  FactorT factor;

  template <class Pack>
  using State = typename OptimizerT::template State<Pack>;
  void validate() const { validate_options(optimizer); }
  template <class C, class Pack>
  auto begin(C& ctx, const Pack& params) const {
    validate();
    expect(!holds_sharded(params), "ExpertRates.begin", "params", "a model that holds all its experts",
           "experts distributed over shards");
    expect(expect_factors(params) > 0, "ExpertRates.begin", "params", "tensors of experts, below a part named `expert`",
           "none");
    return optimizer.begin(ctx, params);
  }
  template <class Pack, class StateT>
  void expect_step(Pack& params, Pack& grads, StateT& state) const {
    validate();
    expect_factors(params);
    optim::expect_step(optimizer, params, grads, state);
  }
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state) const {
    const expert_rates::EachExpert<FactorT> each{factor, rate_of(optimizer)};
    constexpr bool by_parts = requires { optimizer.step_parts(ctx, params, grads, state, each); };
    GATEFOLD_REQUIRE(by_parts,
                     "gatefold: ExpertRates wraps AdamW or Sgd directly; put other wrappers outside it: "
                     "optim::Clipped{optim::ExpertRates{optim::AdamW{}, factor}, 1.0}");
    expect_step(params, grads, state);
    if constexpr (by_parts) optimizer.step_parts(ctx, params, grads, state, each);
  }

 private:
  /// Checks that the factor of each expert is finite and at least 0. Returns the number of tensors that belong to
  /// experts.
  template <class Pack>
  Index expect_factors(const Pack& params) const {
    Index tensors = 0;
    for_each_learned(
        [&](const Name& name, const auto& p) {
          if (!expert_rates::of_experts(name) || p.size() == 0) return;
          ++tensors;
          for (Index e = 0; e < p.extent(0); ++e) {
            const double times = factor(name, e);
            expect(times >= 0 && times <= std::numeric_limits<double>::max(), "ExpertRates",
                   Joined{"factor of ", name, ", expert ", e}, "a finite number, at least 0", times);
          }
        },
        params);
    return tensors;
  }
};
template <class O, class F>
ExpertRates(O, F) -> ExpertRates<O, F>;
template <class First, class... Rest, class = std::enable_if_t<!Optimizer<First>>>
ExpertRates(First, Rest...) -> ExpertRates<NoOptimizer<First>, double (*)(const Name&, Index)>;

}  // namespace optim

namespace functor {

/// Calls the functor `step` with the indices of a range of a tensor: index i of the range is element first + i of the
/// tensor.
template <class Step>
struct FromElement {
  using Element = typename Step::Element;
  Index first;
  Step step;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    step(at, first + i);
  }
};

}  // namespace functor

namespace optim {

namespace expert_rates {

/// Returns true if a tensor belongs to the experts of a mixture, so that its first extent is the number of experts.
/// This is so if its name contains the part `expert` and not the part `shared` (the shared expert of WithShared).
inline bool of_experts(const Name& name) {
  bool found = false;
  for (const Name* at = &name; at; at = at->parent) {
    if (at->part == "shared") return false;
    found = found || at->part == "expert";
  }
  return found;
}
/// Runs the optimizer step of a tensor with a different learning rate for each expert. It runs one loop for each range
/// of neighbouring experts with the same factor. It is the argument `each` of the function step_parts of AdamW and Sgd.
template <class FactorT>
struct EachExpert {
  const FactorT& factor;
  double lr;

  template <class C, class G, class StepT>
  void operator()(C& ctx, const Name& name, const G& grad, const StepT& step) const {
    if (!of_experts(name) || grad.size() == 0) return for_each_touched(ctx, grad, step);
    const Index experts = grad.extent(0), slice = grad.size() / experts;
    for (Index first = 0, last = 0; first < experts; first = last) {
      const double times = factor(name, first);
      for (last = first + 1; last < experts && factor(name, last) == times;) ++last;
      functor::FromElement<StepT> part{first * slice, step};
      if (times != 1) part.step.lr = static_cast<decltype(step.lr)>(lr * times);
      C::Backend::for_each(ctx, (last - first) * slice, part);
    }
  }
};

}  // namespace expert_rates

}  // namespace optim
}  // namespace gatefold
