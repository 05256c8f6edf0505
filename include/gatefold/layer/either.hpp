#pragma once

#include <type_traits>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"

namespace gatefold {

/// Runs one of two branches. The choice is an option, so that a stack can have layers of both kinds, for example dense
/// layers before layers with mixtures: `Either{mixture, OneExpert{GatedMlp<Silu>{…}}, l < 3}`.
///
///     u = first(x), or u = second(x) if use_second                                                      (1)
///
/// Only the chosen branch has parameters. Extra inputs are passed only to the first branch. The second branch runs with
/// default extra inputs.
/// @param x [N, in_dim] in, u [N, out_dim] out
/// @throws ArgumentError unless both branches have the same in_dim and out_dim
/// @cost   the cost of the chosen branch
template <class FirstT, class SecondT>
struct Either {
  FirstT first;
  SecondT second;
  bool use_second = false;

  template <class T, class B>
  struct Params {
    gatefold::Params<FirstT, T, B> first;
    gatefold::Params<SecondT, T, B> second;
    GATEFOLD_PACK(first, second)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<FirstT, T, B> first;
    gatefold::Saved<SecondT, T, B> second;
    bool used_second = false;
    void mixtures(auto&& f) const { used_second ? for_each_mixture(second, f) : for_each_mixture(first, f); }
  };

  GATEFOLD_TYPES_OF_BRANCH(FirstT, first)

  GATEFOLD_INIT(Either) {
    expect_options();
    Params<T, B> p{};
    if (use_second)
      p.second = init_params<T, B>(second, ctx, seed);
    else
      p.first = init_params<T, B>(first, ctx, seed);
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    if (use_second)
      gatefold::validate(second, p.second, items, gatefold::Extra<SecondT, T, B>{});
    else
      gatefold::validate(first, p.first, items, extra);
  }

  GATEFOLD_BRANCH_PASSES(Either)

 private:
  GATEFOLD_RUN_BRANCH {
    if constexpr (!std::is_null_pointer_v<Keep>) keep->used_second = use_second;
    if (use_second)
      run_branch<T, B>(second, ctx, p.second, x, u, part_of(keep, &Saved<T, B>::second),
                       gatefold::Extra<SecondT, T, B>{}, step);
    else
      run_branch<T, B>(first, ctx, p.first, x, u, part_of(keep, &Saved<T, B>::first), extra, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    if (!use_second)
      return run_branch_backward<T, B>(first, ctx, p.first, x, saved.first, du, dx, grads.first, extra, dextra);
    gatefold::ExtraGrad<SecondT, T, B> none{};
    run_branch_backward<T, B>(second, ctx, p.second, x, saved.second, du, dx, grads.second,
                              gatefold::Extra<SecondT, T, B>{}, none);
  }
  void expect_options() const {
    expect(second.in_dim() == in_dim(), "Either", "second.in_dim", Joined{in_dim(), " (from first.in_dim)"},
           second.in_dim());
    expect(second.out_dim() == out_dim(), "Either", "second.out_dim", Joined{out_dim(), " (from first.out_dim)"},
           second.out_dim());
  }
};
template <class F, class S>
Either(F, S) -> Either<F, S>;
template <class F, class S>
Either(F, S, bool) -> Either<F, S>;

}  // namespace gatefold
