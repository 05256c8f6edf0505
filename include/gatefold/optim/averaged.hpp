#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), MoveTowards, Exchange);

namespace optim {

namespace averages {

template <class C>
struct CopyTensor;

/// A visitor for structure_like, which copies the structure of a pack (a struct of tensors). This visitor does nothing,
/// so the tensors of the copy stay empty.
struct NoElements {
  void operator()(auto&, const auto&) const {}
};

}  // namespace averages

/// Wraps an optimizer, and also computes an exponential moving average (EMA) a of the parameters p, for evaluation. The
/// option `decay` is d.
///
///     a₀ = p₀,   a_t = d a_{t−1} + (1−d) p_t   after step t                                              (1)
///
///     Trainer trainer{ctx, model, loss, optim::Averaged{optim::AdamW{.lr = 1e-3}, 0.999}, Seed{1}};
///     …
///     swap_averages(trainer);                             // trainer.params are the averages now
///     const double average = trainer.evaluate(x, target);
///     swap_averages(trainer);                             // the learned parameters again, to continue training
///
/// Source: Polyak and Juditsky 1992, doi:10.1137/0330046, with the weights of torch's get_ema_multi_avg_fn.
///
/// The weights of p₀, …, p_t in the average sum to 1, so no bias correction is needed. Equation (1) is computed as a +
/// (1−d) (p − a). In float, a difference p − a below 2⁻²⁵ |a| / (1−d) does not change a.
///
/// Tensors that are not learned are not averaged. The wrappers Clipped, Scheduled and InGroups can be inside or outside
/// Averaged; dist::DataParallel must be outside, dist::Zero inside. If Averaged is inside InGroups, it averages the
/// parameters of one group. A checkpoint contains the averages (their names begin with `optimizer.`) and whether they
/// are swapped with the parameters. If a checkpoint was saved between the two calls of swap_averages, its parameters
/// are the averages, so load_model reads the averages.
/// @throws ArgumentError if `decay` is not in [0, 1), if a step is made between the two calls of swap_averages, or if
///         the inner optimizer throws it. Nothing has been written then
/// @cost   memory for one copy of the parameters. Each step reads parameters and averages once, including all rows of
///         an embedding
template <Optimizer OptimizerT>
struct Averaged {
  using IsOptimizer = void;
  static_assert(check_inside<OptimizerT>());
  OptimizerT optimizer;
  double decay = 0.999;

  template <class Pack>
  struct State {
    using HoldsAverage = Pack;
    typename OptimizerT::template State<Pack> inner;
    // The moving averages of the parameters. Tensors that are not learned have no elements here.
    Pack average;
    Index step = 0, swapped = 0;
    GATEFOLD_PACK(inner, average)
    static void counters(auto&& f, auto&... s) {
      f("step", s.step...);
      f("swapped", s.swapped...);
    }
  };
  void validate() const {
    expect(decay >= 0 && decay < 1, "Averaged", "decay", "0 <= decay < 1", decay);
    validate_options(optimizer);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    const auto here = ctx.here();
    State<Pack> state{optimizer.begin(ctx, params), {}};
    detail_::pack::structure_like(state.average, params, averages::NoElements{});
    averages::CopyTensor<C> visitor{ctx};
    detail_::pack::visit<true>(visitor, Name{}, state.average, params);
    return state;
  }
  template <class Pack>
  void expect_step(Pack& params, Pack& grads, State<Pack>& state) const {
    validate();
    expect(state.swapped == 0, "Averaged.step", "params", "the learned parameters (call swap_averages once more)",
           "their averages");
    for_each_learned(
        [](const Name& name, const auto& p, const auto& a) {
          expect(a.size() == p.size(), "Averaged.step", Joined{"state.average.", name, ": elements"}, p.size(),
                 a.size());
        },
        std::as_const(params), std::as_const(state.average));
    optim::expect_step(optimizer, params, grads, state.inner);
  }
  template <class C, class Pack>
  auto measure(C& ctx, const Pack& grads) const {
    return measure_gradients(optimizer, ctx, grads);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    expect_step(params, grads, state);
    optimizer.step(ctx, params, grads, state.inner);
    move(ctx, params, state);
  }
  template <class C, class Pack, class MeasuredT>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state, const MeasuredT& measured) const {
    expect_step(params, grads, state);
    measured_step(optimizer, ctx, params, grads, state.inner, measured);
    move(ctx, params, state);
  }

 private:
  /// Counts a step, and updates the averages of all learned tensors with the new parameters, by equation (1).
  template <class C, class Pack>
  void move(C& ctx, const Pack& params, State<Pack>& state) const {
    ++state.step;
    for_each_learned(
        [&](const Name&, const auto& p, auto& a) {
          using T = std::remove_cvref_t<decltype(*a.data())>;
          C::Backend::for_each(ctx, a.size(), functor::MoveTowards<T>{T(1 - decay), p.data(), a.data()});
        },
        params, state.average);
  }
};
template <class O>
Averaged(O) -> Averaged<O>;
template <class O>
Averaged(O, double) -> Averaged<O>;
template <class First, class... Rest, class = std::enable_if_t<!Optimizer<First>>>
Averaged(First, Rest...) -> Averaged<NoOptimizer<First>>;

namespace averages {

/// A visitor that copies each tensor of one pack to the corresponding tensor of another pack, which has no elements
/// yet.
template <class C>
struct CopyTensor {
  C& ctx;
  void operator()(const Name&, auto& to, const auto& from) const {
    to.resize_like(from);
    copy(ctx, from.view(), to.view());
  }
};

/// Searches the state of an optimizer, and of the optimizers inside it, for states of Averaged. Calls f(state) for each
/// state of Averaged whose averages have the type `Pack`.
template <class Pack, class F, class S>
void for_each(const F& f, S& state) {
  if constexpr (requires { typename S::HoldsAverage; }) {
    if constexpr (std::is_same_v<typename S::HoldsAverage, Pack>) f(state);
    for_each<Pack>(f, state.inner);
  } else if constexpr (!std::is_same_v<S, Pack> && !detail_::pack::is_tensor<S> && !detail_::pack::is_vector<S> &&
                       !detail_::pack::is_tuple<S>) {
    S::each([&](std::string_view, auto& part) { for_each<Pack>(f, part); }, state);
  }
}

}  // namespace averages
}  // namespace optim

/// Exchanges the parameters of a model and their moving averages (optim::Averaged), for example before an evaluation. A
/// second call restores the original bits. Between the two calls, a step of the optimizer throws. Views of the tensors
/// stay valid.
/// @param state  state of an optimizer with an Averaged at any depth; an Averaged inside InGroups exchanges only the
///               parameters of its group
/// @throws ArgumentError if there is no Averaged in the optimizer, or if two Averaged average the same tensor. Nothing
///         has been written then
/// @cost   one pass over parameters and averages
template <class C, class Pack, class StateT>
void swap_averages(C& ctx, Pack& params, StateT& state) {
  const auto here = ctx.here();
  std::vector<int> averages(count_tensors(params));
  int found = 0;
  optim::averages::for_each<Pack>(
      [&](auto& of) {
        ++found;
        std::size_t i = 0;
        for_each_learned(
            [&](const Name& name, const auto& a) {
              expect(a.size() == 0 || ++averages[i] == 1, "swap_averages", name, "an average in one optim::Averaged",
                     "averages in two; remove one of them from the optimizer");
              ++i;
            },
            std::as_const(of.average));
      },
      state);
  expect(found > 0, "swap_averages", "optimizer", "one with an optim::Averaged around or inside it", "one without");
  optim::averages::for_each<Pack>(
      [&](auto& of) {
        for_each_learned(
            [&](const Name&, auto& p, auto& a) {
              using T = std::remove_cvref_t<decltype(*a.data())>;
              if (a.size() > 0) C::Backend::for_each(ctx, a.size(), functor::Exchange<T>{p.data(), a.data()});
            },
            params, of.average);
        of.swapped = 1 - of.swapped;
      },
      state);
}
/// Exchanges the parameters of a Trainer and their moving averages (optim::Averaged).
template <class RunT>
void swap_averages(RunT& run) {
  constexpr bool is_trainer = requires { swap_averages(run.context(), run.params, run.state); };
  GATEFOLD_REQUIRE(
      is_trainer,
      "gatefold: swap_averages takes a Trainer, or a context, parameters and the state of their optimizer: "
      "swap_averages(trainer), swap_averages(ctx, params, state)");
  if constexpr (is_trainer) swap_averages(run.context(), run.params, run.state);
}

namespace functor {

/// Updates an element of a moving average of parameters: a ← a + share · (p − a), with share = 1 − decay of Averaged.
template <class T>
struct MoveTowards {
  using Element = T;
  T share;
  const T* p;
  T* a;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    const auto ai = at.load(a + i);
    at.store(a + i, ai + share * (at.load(p + i) - ai));
  }
};
/// Exchanges element i of the arrays a and b.
template <class T>
struct Exchange {
  using Element = T;
  T *a, *b;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    const auto ai = at.load(a + i), bi = at.load(b + i);
    at.store(a + i, bi);
    at.store(b + i, ai);
  }
};

}  // namespace functor

}  // namespace gatefold
