#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CountPicks, JoinPicks, WeighSlots, GradOfPicks, CombineTasks,
                  CombineTasksBackward);

/// A multi-gate mixture of experts (MMoE): several tasks share the experts, and each task has its own gate. The output
/// has one block of columns for each task, which a MultiTask loss reads. It is a branch.
///
///     u_t[n] = Σ_e w_t[n,e] · expert_e(x[n]),   u[n] = (u_0[n], …, u_{tasks−1}[n])                       (1)
///
/// w_t are the weights of gate t, 0 for experts that gate t did not pick. An expert computes an item once, also if
/// several gates pick this expert for the item. Auxiliary losses are added up over the gates. If a gate draws random
/// numbers, each task has a separate random stream. As in a Mixture, if the model dimension of the gate is 0, it is set
/// to the width of the experts. If the gate's number of experts is 0 and the experts are of several kinds (`Experts`),
/// the number is set to expert.experts().
///
/// Source: Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts",
/// KDD, doi:10.1145/3219819.3220007, eq. (6) and (7), with SoftmaxDense as gate. The towers of the paper are the next
/// layer, Towers{expert, tasks}. docs/how-to/tabular.md has an example program.
/// @param x [N, in_dim] in, u [N, tasks · expert.out_dim] out
/// @param gate   the options of all gates. The plan of the gate (list of picks) must be a SparsePlan, so SoftMoe and
///               gates that weight the inputs of experts (WeightOnInput) are not possible
/// @param extra  the extra inputs of the gates, as in a Mixture
/// @throws ArgumentError if tasks < 1, or a shape or an option is invalid, before anything is written
/// @cost   the costs of the gates and of the experts on the S distinct pairs of item and expert, and
///         tasks·S·expert.out_dim multiply-adds to combine the outputs. The outputs z of the experts take memory for
///         all picks of all gates
/// @order  an item's slots are summed by ascending expert
template <class GateT, class ExpertT>
struct MultiGate {
  static_assert(detail_::policy::in_order<MultiGate>);
  GateT gate;
  ExpertT expert;
  Index tasks = 1;

  template <class T, class B>
  struct Params {
    using TaskGate = GateT;
    std::vector<gatefold::Params<GateT, T, B>> gate;  // one pack per task
    gatefold::Params<ExpertT, T, B> expert;
    [[no_unique_address]] ActiveExperts<B> active{};  // upper bound of the number of experts of an item; for `summary`
    GATEFOLD_PACK(gate, expert)
  };
  /// The picks of one task: the plan and the saved values of its gate.
  template <class T, class B>
  struct Task {
    gatefold::Plan<GateT, T, B> plan;
    gatefold::Saved<GateT, T, B> gate;
  };
  template <class T, class B>
  struct Saved {
    std::vector<Task<T, B>> tasks;
    SparsePlan<T, B> plan;  // the distinct pairs of item and expert; its weights are 1 and not used
    gatefold::Saved<ExpertT, T, B> expert;
    Tensor<T, 2, B> z;       // [slots, expert.out_dim] outputs of the experts
    Tensor<T, 2, B> weight;  // [tasks, slots] weight of each slot for each task, 0 if the task did not pick it
    BatchStamp batch;
    void mixtures(auto&& f) const {
      for (const auto& task : tasks) f(task);
    }
  };
  template <class T, class B>
  using Extra = gatefold::Extra<Mixture<GateT, ExpertT>, T, B>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;

  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return tasks * expert.out_dim(); }
  Index experts() const { return of_one_task().experts(); }

  GATEFOLD_INIT(MultiGate) {
    const auto here = ctx.here();
    expect_tasks();
    expect(in_dim() >= 1, "MultiGate.init", "expert.in_dim", "at least 1", in_dim());
    const GateT g = of_one_task().filled_gate();
    const Index count = count_experts(g);
    Params<T, B> p{{},
                   expert.template init<T, B>(ctx, count, seed.fork(1)),
                   ActiveExperts<B>{std::min(count, tasks * active_experts(g, count)), count}};
    for (Index t = 0; t < tasks; ++t)
      p.gate.push_back(init_params<T, B>(g, ctx, seed.fork(0).fork(static_cast<std::uint64_t>(t))));
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_tasks();
    expect(static_cast<Index>(p.gate.size()) == tasks, "MultiGate", "params.gate.size()", Joined{tasks, " (tasks)"},
           p.gate.size());
    const auto one = of_one_task();
    const GateT g = one.filled_gate();
    if constexpr (detail_::hook::gate::validate<GateT, T, B>())
      for (const auto& of_task : p.gate) g.validate(of_task, items, one.of_gate(extra));
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>())
      one.drawing_experts(extra).validate(p.expert, count_experts(g));
  }

  GATEFOLD_BRANCH_PASSES(MultiGate)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    if constexpr (std::is_null_pointer_v<Keep>) {
      auto discarded = ctx.template acquire<Saved<T, B>>();
      compute<T, B, false>(ctx, p, x, u, *discarded, extra);
    } else {
      keep->batch.take(x);
      compute<T, B, true>(ctx, p, x, u, *keep, extra);
    }
    run_step(ctx, u, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    saved.batch.expect_same("MultiGate.backward", x);
    expect_saved(saved, x.extent(0));
    auto mark = ctx.mark();
    const auto one = of_one_task();
    const GateT g = one.filled_gate();
    const auto in = saved.plan.dispatched(x);
    const Index slots = in.groups.slots;
    const auto dweight = ctx.template scratch<T>(tasks, slots);
    {
      auto inner = ctx.mark();
      const auto dz = ctx.template scratch<T>(slots, expert.out_dim());
      const auto dslots = ctx.template scratch<T>(slots, in_dim());
      B::for_rows(ctx, slots, functor::CombineTasksBackward<T, B>{in.groups, saved.weight, saved.z, du, dz, dweight});
      one.drawing_experts(extra).backward(ctx, p.expert, in.groups, in.x, saved.expert, dz, dslots, grads.expert);
      auto unused = typename SparsePlan<T, B>::Grad{};
      saved.plan.dispatch_backward(ctx, x, dslots, dx, unused);
    }
    for (Index t = 0; t < tasks; ++t) {
      auto inner = ctx.mark();
      const auto& task = number(saved.tasks, t);
      auto dplan = task.plan.grad(ctx);
      B::for_each(ctx, x.extent(0),
                  functor::GradOfPicks<T, B>{task.plan.item_offsets, task.plan.item_slots, task.plan.pick,
                                             task.plan.expert, saved.plan.item_offsets, saved.plan.item_slots,
                                             saved.plan.pick, saved.plan.expert, dweight.rows(t, 1), dplan.weight});
      g.backward(ctx, number(p.gate, t), x, task.plan, task.gate, dplan, dx, number(grads.gate, t),
                 at_layer(one.of_gate(extra), t), dextra);
    }
  }
  template <class T, class B, bool training>
  void compute(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Saved<T, B>& saved,
               const Extra<T, B>& extra) const {
    const auto one = of_one_task();
    const GateT g = one.filled_gate();
    saved.tasks.resize(static_cast<std::size_t>(tasks));
    for (Index t = 0; t < tasks; ++t) {
      auto& task = number(saved.tasks, t);
      if constexpr (training) {
        g.forward(ctx, number(p.gate, t), x, task.plan, task.gate, at_layer(one.of_gate(extra), t));
      } else {
        infer_gate<T, B>(g, ctx, number(p.gate, t), x, task.plan, at_layer(one.of_gate(extra), t));
      }
    }
    join(ctx, saved, x.extent(0), count_experts(g));
    const auto in = saved.plan.dispatch(ctx, x);
    saved.z.resize(in.groups.slots, expert.out_dim());
    if constexpr (training) {
      one.drawing_experts(extra).forward(ctx, p.expert, in.groups, in.x, saved.z, saved.expert);
    } else {
      infer_expert<T, B>(one.drawing_experts(extra), ctx, p.expert, in.groups, in.x, saved.z);
    }
    B::for_rows(ctx, x.extent(0),
                functor::CombineTasks<T, B>{saved.plan.item_offsets, saved.plan.item_slots, saved.weight, saved.z, u});
  }
  /// Makes the plan of the distinct pairs of item and expert from the plans of the tasks, and computes the weights of
  /// its slots. A slot is the computation of one item by one expert.
  template <class T, class B>
  void join(typename B::Context& ctx, Saved<T, B>& saved, Index items, Index experts) const {
    auto mark = ctx.mark();
    Index picks = 0;
    for (const auto& task : saved.tasks) picks += task.plan.item.size();
    auto& plan = saved.plan;
    plan.resize(items, experts, picks);
    // The picks of item n begin at first(n). Each task appends the experts that no earlier task has picked.
    const auto first = ctx.template scratch<Index>(items), count = ctx.template scratch<Index>(items);
    for (const auto& of : {first, count}) fill(ctx, of, 0);
    fill(ctx, plan.expert, no_pick);
    fill(ctx, plan.item, 0);
    fill(ctx, plan.weight, 1);
    for (const auto& task : saved.tasks)
      B::for_each(ctx, items, functor::CountPicks<T, B>{task.plan.item_offsets, first});
    for (const auto& task : saved.tasks)
      B::for_each(ctx, items,
                  functor::JoinPicks<T, B>{task.plan.item_offsets, task.plan.item_slots, task.plan.pick,
                                           task.plan.expert, first, count, plan.item, plan.expert});
    plan.build(ctx);
    saved.weight.resize(tasks, picks);
    fill(ctx, saved.weight, 0);
    for (Index t = 0; t < tasks; ++t) {
      const auto& of = number(saved.tasks, t).plan;
      B::for_each(
          ctx, items,
          functor::WeighSlots<T, B>{of.item_offsets, of.item_slots, of.pick, of.expert, of.weight, plan.item_offsets,
                                    plan.item_slots, plan.pick, plan.expert, saved.weight.view().rows(t, 1)});
    }
  }
  /// Returns a Mixture with the gate of one task and the shared experts. MultiGate uses the functions of this Mixture
  /// that fill in options of the gate and the experts.
  Mixture<GateT, ExpertT> of_one_task() const { return {gate, expert}; }
  template <class V>
  static auto& number(V& vector, Index t) {
    return vector[static_cast<std::size_t>(t)];
  }
  void expect_tasks() const { expect(tasks >= 1, "MultiGate", "tasks", "at least 1", tasks); }
  template <class T, class B>
  void expect_saved(const Saved<T, B>& saved, Index items) const {
    constexpr const char* where = "MultiGate.backward";
    expect(static_cast<Index>(saved.tasks.size()) == tasks, where, "saved.tasks.size()", tasks, saved.tasks.size());
    expect(saved.plan.items() == items, where, "saved.plan.items()",
           Joined{items, " (the items of x; pass the saved of its forward)"}, saved.plan.items());
    expect(saved.plan.experts() == experts(), where, "saved.plan.experts()", experts(), saved.plan.experts());
    expect_shape(where, "saved.z", saved.z, {saved.plan.rows.size(), expert.out_dim()});
    expect_shape(where, "saved.weight", saved.weight, {tasks, saved.plan.rows.size()});
  }
};
template <class G, class E>
MultiGate(G, E) -> MultiGate<G, E>;
template <class G, class E>
MultiGate(G, E, Index) -> MultiGate<G, E>;

namespace functor {

/// Adds to first[n] the number of picks of the items before n in the plan of one task.
template <class T, class B>
struct CountPicks {
  View<const Index, 1, B> item_offsets;
  View<Index, 1, B> first;
  GATEFOLD_HD void operator()(Index n) const { first(n) += item_offsets(n); }
};
/// Appends the experts that one task picked for item n to the joined picks of the item, unless another task has picked
/// them already. The joined picks of item n are at first[n], …, first[n] + count[n] − 1.
template <class T, class B>
struct JoinPicks {
  View<const Index, 1, B> item_offsets, item_slots, pick, expert;  // the plan of the task
  View<const Index, 1, B> first;
  View<Index, 1, B> count, to_item, to_expert;
  GATEFOLD_HD void operator()(Index n) const {
    const Index begin = first(n);
    Index end = begin + count(n);
    for (Index i = item_offsets(n); i < item_offsets(n + 1); ++i) {
      const Index e = expert(pick(item_slots(i)));
      Index at = begin;
      while (at < end && to_expert(at) != e) ++at;
      if (at < end) continue;
      to_item(end) = n;
      to_expert(end) = e;
      ++end;
    }
    count(n) = end - begin;
  }
};
/// Calls f(pick, slot) for each pick of item n in the plan of one task. `slot` is the slot of the joined plan that
/// computes the same item with the same expert. Both plans list the slots of an item by ascending expert, so one pass
/// over both lists finds all pairs.
template <class B, class F>
GATEFOLD_HD void for_each_joined(Index n, const View<const Index, 1, B>& item_offsets,
                                 const View<const Index, 1, B>& item_slots, const View<const Index, 1, B>& pick,
                                 const View<const Index, 1, B>& expert, const View<const Index, 1, B>& joined_offsets,
                                 const View<const Index, 1, B>& joined_slots,
                                 const View<const Index, 1, B>& joined_pick,
                                 const View<const Index, 1, B>& joined_expert, const F& f) {
  Index joined = joined_offsets(n);
  for (Index i = item_offsets(n); i < item_offsets(n + 1); ++i) {
    const Index of_task = pick(item_slots(i));
    while (joined_expert(joined_pick(joined_slots(joined))) != expert(of_task)) ++joined;
    f(of_task, joined_slots(joined));
  }
}
/// Adds the weight of each pick of item n in one task to the weight of the slot that computes this pick.
template <class T, class B>
struct WeighSlots {
  View<const Index, 1, B> item_offsets, item_slots, pick, expert;  // the plan of the task
  View<const T, 1, B> weight;
  View<const Index, 1, B> joined_offsets, joined_slots, joined_pick, joined_expert;
  View<T, 2, B> to;  // [1, slots]
  GATEFOLD_HD void operator()(Index n) const {
    for_each_joined(n, item_offsets, item_slots, pick, expert, joined_offsets, joined_slots, joined_pick, joined_expert,
                    [&](Index of_task, Index slot) { to(0, slot) += weight(of_task); });
  }
};
/// Writes the gradients of the weights of one task's picks of item n. The gradient of a pick is the gradient of the
/// slot that computes this pick.
template <class T, class B>
struct GradOfPicks {
  View<const Index, 1, B> item_offsets, item_slots, pick, expert;  // the plan of the task
  View<const Index, 1, B> joined_offsets, joined_slots, joined_pick, joined_expert;
  View<const T, 2, B> dweight;  // [1, slots]
  View<T, 1, B> to;
  GATEFOLD_HD void operator()(Index n) const {
    for_each_joined(n, item_offsets, item_slots, pick, expert, joined_offsets, joined_slots, joined_pick, joined_expert,
                    [&](Index of_task, Index slot) { to(of_task) = dweight(0, slot); });
  }
};
/// Computes the outputs of item n for all tasks: u[n, t] = Σ_s weight[t, s] z[s] over the slots s of the item, in
/// ascending order. A task does not read slots of weight 0. A value of z that is not finite therefore affects only
/// tasks that picked its expert.
template <class T, class B>
struct CombineTasks {
  View<const Index, 1, B> item_offsets, item_slots;
  View<const T, 2, B> weight, z;
  View<T, 2, B> u;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = z.extent(1), begin = from_first(lanes, [&] { return item_offsets(n); }),
                end = from_first(lanes, [&] { return item_offsets(n + 1); });
    for (Index t = 0; t < weight.extent(0); ++t) {
      T* to = u.data() + n * u.extent(1) + t * columns;
      each_column<T>(lanes, columns, [&](auto at, Index j) {
        typename decltype(at)::Value total(T(0));
        for (Index i = begin; i < end; ++i) {
          const Index slot = item_slots(i);
          const T w = weight(t, slot);
          if (w != 0) total += w * at.load(z.data() + slot * columns + j);
        }
        at.store(to + j, total);
      });
    }
  }
};
/// Backward pass of CombineTasks. For slot s of item n, writes the gradient of the expert's output, dz[s] = Σ_t
/// weight[t, s] du[n, t]. Also writes the gradient of the slot's weight for each task, dweight[t, s] = ⟨du[n, t],
/// z[s]⟩.
template <class T, class B>
struct CombineTasksBackward {
  Groups<B> groups;
  View<const T, 2, B> weight, z, du;
  View<T, 2, B> dz, dweight;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = z.extent(1), n = from_first(lanes, [&] { return groups.row(s); });
    const T* value = z.data() + s * columns;
    T* to = dz.data() + s * columns;
    zero_columns(lanes, to, columns);
    for (Index t = 0; t < weight.extent(0); ++t) {
      const T w = from_first(lanes, [&] { return weight(t, s); });
      const T* from = du.data() + n * du.extent(1) + t * columns;
      const T dot = sum_columns<T>(lanes, columns, [&](auto at, Index j) {
        const auto d = at.load(from + j);
        if (w != 0) at.store(to + j, at.load(to + j) + w * d);
        return d * at.load(value + j);
      });
      if (lanes.lane == 0) dweight(t, s) = dot;
    }
  }
};

}  // namespace functor

}  // namespace gatefold
