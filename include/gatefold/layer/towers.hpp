#pragma once

#include <type_traits>

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/routing/dense_plan.hpp"

namespace gatefold {

/// Runs a separate network for each task, the towers of a multi-task model. The input and the output have one block of
/// columns per task, as the output of a MultiGate. It is a branch.
///
///     u[n] = (expert_0(x_0[n]), …, expert_{tasks−1}(x_{tasks−1}[n])),   x[n] = (x_0[n], …, x_{tasks−1}[n])   (1)
///
/// The towers have the same options and separate parameters. Params has one expert for each task; tower t is expert t.
/// For one tower that all tasks share, use PerToken{tasks, tower}.
///
/// Source: Ma et al. 2018, KDD, doi:10.1145/3219819.3220007, eq. (6), h^k.
/// @param x [N, tasks · expert.in_dim] in, u [N, tasks · expert.out_dim] out
/// @param extra  the Noise, if the expert draws random numbers (HiddenDropout); otherwise there are no extra inputs
/// @throws ArgumentError if tasks < 1 or a shape is wrong
/// @cost   the expert on N·tasks slots, and a copy of u
template <class ExpertT>
struct Towers {
  ExpertT expert;
  Index tasks = 1;

  GATEFOLD_PARAMS_OF(expert, ExpertT)
  template <class T, class B>
  using Saved = gatefold::Saved<ExpertT, T, B>;
  template <class T, class B>
  using Extra = detail_::passes::NoiseOf<ExpertT, T, B>;

  Index in_dim() const { return tasks * expert.in_dim(); }
  Index out_dim() const { return tasks * expert.out_dim(); }

  GATEFOLD_INIT(Towers) {
    expect(tasks >= 1, "Towers", "tasks", "at least 1", tasks);
    return {expert.template init<T, B>(ctx, tasks, seed)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const NonDeduced<Extra<T, B>>& extra) const {
    expect(tasks >= 1, "Towers", "tasks", "at least 1", tasks);
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>()) drawing(extra).validate(p.expert, tasks);
  }

  GATEFOLD_BRANCH_PASSES(Towers)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    const Index rows = x.extent(0) * tasks;
    const auto groups = groups_of_towers<B>(ctx, x.extent(0));
    const auto z = ctx.template scratch<T>(rows, expert.out_dim());
    run_expert<T, B>(drawing(extra), ctx, p.expert, groups, x.as(rows, expert.in_dim()), z, keep);
    B::for_rows(ctx, rows, functor::CarryRows<T, T, T, B>{{}, z, groups.rows, u.as(rows, expert.out_dim())});
    run_step(ctx, u, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    auto mark = ctx.mark();
    const Index rows = x.extent(0) * tasks;
    const auto groups = groups_of_towers<B>(ctx, x.extent(0));
    const auto dz = ctx.template scratch<T>(rows, expert.out_dim());
    const auto dslots = ctx.template scratch<T>(rows, expert.in_dim()),
               drows = ctx.template scratch<T>(rows, expert.in_dim());
    B::for_rows(ctx, rows, functor::CarryRows<T, T, T, B>{groups.rows, du.as(rows, expert.out_dim()), {}, dz});
    drawing(extra).backward(ctx, p.expert, groups, x.as(rows, expert.in_dim()), saved, dz, dslots, grads.expert);
    B::for_rows(ctx, rows, functor::CarryRows<T, T, T, B>{{}, dslots, groups.rows, drows});
    add(ctx, drows.as(x.extent(0), in_dim()), dx);
  }
  /// Returns the slots of the towers, grouped by tower. Slot t·N + n is the input of tower t for item n: row n·tasks +
  /// t of the input, viewed as [N·tasks, expert.in_dim].
  template <class B>
  Groups<B> groups_of_towers(typename B::Context& ctx, Index items) const {
    const auto offsets = ctx.template scratch<Index>(tasks + 1), rows = ctx.template scratch<Index>(items * tasks);
    B::for_each(ctx, offsets.size(), functor::EvenOffsets<B>{items, offsets});
    B::for_each(ctx, rows.size(), functor::SlotRows<B>{tasks, items, 1, rows});
    return {offsets, rows, rows.size()};
  }
  ExpertT drawing(const auto& extra) const { return detail_::passes::drawing(expert, extra); }
};
template <class E>
Towers(E) -> Towers<E>;
template <class E>
Towers(E, Index) -> Towers<E>;

}  // namespace gatefold
