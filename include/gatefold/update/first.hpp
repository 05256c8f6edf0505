#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

namespace gatefold::update {

/// An update rule that applies the rule `first` in the first layer of a model, and the rule `rest` in all later layers,
/// for example First{Adam{…}, HeavyBall{…}}. u is the output of the branch; a and b are the states (carries) of the two
/// rules.
///
///     y, a ← first(x, a; u)   in the first layer,   y, b ← rest(x, b; u)   in all others                (1)
///     warm: the first layer also does   b ← rest(x, b; u)   with the same u, and drops its y            (2)
///
/// Source: paper 001, sec. 5 and App. D.1: Adam (or RmsProp) in the first layer, heavy ball after it.
///
/// The paper does not say whether the momentum of `rest` begins in layer 1. In the paper's code it does, as here with
/// `warm`. With `warm`, the first layer updates the states of both rules from one evaluation of the branch. Backward of
/// this layer calls backward of the branch once, with the sum of the gradients of u from both rules.
///
/// Every layer has the parameters of both rules. The parameters that a layer does not use have gradient 0. An optimizer
/// with weight decay, for example AdamW, still decays them.
/// @param carry  the states of both rules, and the number of completed layers
/// @throws ArgumentError if `warm` is true and one of the rules evaluates the branch more than once, because the two
///         rules then have no common u; use warm = false
/// @cost   the cost of the rule in use; in a warm first layer, the cost of both. If `rest` has `advance`, as HeavyBall
///         does, `rest` saves nothing in the first layer and needs no separate pass over memory
template <class FirstT, class RestT>
struct First {
  GATEFOLD_REQUIRE(!detail_::policy::is_misplaced<FirstT>,
                   "gatefold: First takes two update rules: First{first, rest}, for example First{update::Adam{}, "
                   "update::HeavyBall{}}; see docs/how-to/extending.md#rule");
  GATEFOLD_REQUIRE(
      (!detail_::policy::IsOptimizer<FirstT> && !detail_::policy::IsOptimizer<RestT>),
      "gatefold: this is an optimizer (gatefold::optim), which steps parameters; First{a, b} takes two update "
      "rules (gatefold::update); see docs/how-to/extending.md#rule");
  FirstT first;
  RestT rest;
  bool warm = true;

  static constexpr int evaluations =
      std::max(detail_::hook::rule::evaluations<FirstT>(), detail_::hook::rule::evaluations<RestT>());

  template <class T, class B>
  struct Params {
    gatefold::Params<FirstT, T, B> first;
    gatefold::Params<RestT, T, B> rest;
    GATEFOLD_PACK(first, rest)
  };
  template <class T, class B>
  struct Carry {
    gatefold::Carry<FirstT, T, B> first;
    gatefold::Carry<RestT, T, B> rest;
    Index layer = 0;  // number of layers of this rule that have run
    Pass pass{};
    GATEFOLD_PACK(first, rest)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<FirstT, T, B> first;
    gatefold::Saved<RestT, T, B> rest;
    bool is_first = false;
  };

  First with_model_dim(Index width) const {
    return {gatefold::with_model_dim(first, width), gatefold::with_model_dim(rest, width), warm};
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {init_params<T, B>(first, ctx, seed.fork(0)), init_params<T, B>(rest, ctx, seed.fork(1))};
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.layer = 0;
    if constexpr (detail_::hook::rule::begin<FirstT, T, B>()) first.begin(ctx, items, dim, carry.first);
    if constexpr (detail_::hook::rule::begin<RestT, T, B>()) rest.begin(ctx, items, dim, carry.rest);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, Index dim, const Carry<T, B>& carry) const {
    expect(!warm || evaluations == 1, "First", "warm",
           "false, because a rule that evaluates its branch more than once has no single u to share", "true");
    if constexpr (detail_::hook::rule::validate<FirstT, T, B>()) first.validate(p.first, items, dim, carry.first);
    if constexpr (detail_::hook::rule::validate<RestT, T, B>()) rest.validate(p.rest, items, dim, carry.rest);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    saved.is_first = carry.layer == 0;
    step<T, B>(
        ctx, x, carry, f, y,
        [&](auto& u, View<T, 2, B> out) { first.forward(ctx, p.first, x, carry.first, u, out, saved.first); },
        [&](auto& u, View<T, 2, B> out) { rest.forward(ctx, p.rest, x, carry.rest, u, out, saved.rest); });
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    step<T, B>(
        ctx, x, carry, f, y,
        [&](auto& u, View<T, 2, B> out) { infer_rule<T, B>(first, ctx, p.first, x, carry.first, u, out); },
        [&](auto& u, View<T, 2, B> out) { infer_rule<T, B>(rest, ctx, p.rest, x, carry.rest, u, out); });
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads) const {
    if (!saved.is_first) return rest.backward(ctx, p.rest, x, saved.rest, df, dy, dcarry.rest, dx, grads.rest);
    if (!warm) return first.backward(ctx, p.first, x, saved.first, df, dy, dcarry.first, dx, grads.first);
    auto mark = ctx.mark();
    auto total = ctx.template scratch<T>(x.extent(0), x.extent(1));
    if constexpr (advances<T, B>) {
      auto both = [&](View<const T, 2, B> point, View<const T, 2, B> du, View<T, 2, B> dpoint, int call) {
        B::for_each(ctx, du.size(), rest.advance_backward(dcarry.rest, du.data(), total.data()));
        df(point, total, dpoint, call);
      };
      first.backward(ctx, p.first, x, saved.first, both, dy, dcarry.first, dx, grads.first);
    } else {
      auto nothing = ctx.template scratch<T>(x.extent(0), x.extent(1));
      fill(ctx, nothing, 0);
      auto take = [&](View<const T, 2, B>, View<const T, 2, B> du, View<T, 2, B>, int) { copy(ctx, du, total); };
      auto both = [&](View<const T, 2, B> point, View<const T, 2, B> du, View<T, 2, B> dpoint, int call) {
        add(ctx, du, total);
        df(point, total, dpoint, call);
      };
      rest.backward(ctx, p.rest, x, saved.rest, take, nothing, dcarry.rest, dx, grads.rest);
      first.backward(ctx, p.first, x, saved.first, both, dy, dcarry.first, dx, grads.first);
    }
  }

 private:
  /// True if the second rule, `rest`, can update its state in the same pass over memory in which the rule `first`
  /// processes the branch output u.
  template <class T, class B>
  static constexpr bool advances =
      detail_::hook::rule::advance<RestT, T, B>() && detail_::hook::rule::advance_backward<RestT, T, B>();
  /// Applies the rule `first` in the first layer and the rule `rest` in later layers, equations (1) and (2).
  /// run_first(f, y) and run_rest(f, y) run a rule; f is a functor that evaluates the branch.
  template <class T, class B, class F, class RunFirst, class RunRest>
  void step(typename B::Context& ctx, View<const T, 2, B> x, Carry<T, B>& carry, F& f, View<T, 2, B> y,
            const RunFirst& run_first, const RunRest& run_rest) const {
    if (carry.layer++ > 0) return run_rest(f, y);
    if (!warm) return run_first(f, y);
    if constexpr (advances<T, B>) {
      auto both = make_evaluation<T, B>(
          [&]<class Step>(View<const T, 2, B> point, View<T, 2, B> u, int call, const Step& step) {
            const auto advance = rest.advance(carry.rest, static_cast<const T*>(u.data()));
            if constexpr (RegisterFunctor<decltype(advance)> && RegisterFunctor<Step>) {
              f(point, u, call, functor::InTurn{advance, step});
            } else {
              f(point, u, call, advance);
              run_step(ctx, u, step);
            }
          });
      run_first(both, y);
    } else {
      auto mark = ctx.mark();
      auto shared = ctx.template scratch<T>(x.extent(0), x.extent(1));
      auto dropped = ctx.template scratch<T>(x.extent(0), x.extent(1));
      auto evaluate =
          make_evaluation<T, B>([&](View<const T, 2, B> point, View<T, 2, B> u, int call, const auto& step) {
            f(point, u, call);
            copy(ctx, u, shared);
            run_step(ctx, u, step);
          });
      auto reuse = make_evaluation<T, B>([&](View<const T, 2, B>, View<T, 2, B> u, int, const auto& step) {
        copy(ctx, shared, u);
        run_step(ctx, u, step);
      });
      run_first(evaluate, y);
      run_rest(reuse, dropped);
    }
  }
};
template <class F, class R>
First(F, R) -> First<F, R>;
template <class F, class R, class W>
First(F, R, W) -> First<F, R>;
template <class... P>
First(P...) -> First<detail_::policy::Misplaced<P...>, detail_::policy::Misplaced<P...>>;

}  // namespace gatefold::update
