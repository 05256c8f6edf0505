#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "gatefold/loss/loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PutColumns);

/// Selects the divisor of the mean loss of a task: the number of its targets that are not ignored, or the number of all
/// items.
enum class MeanOver { targets, items };

namespace detail_::loss {

template <class... Views>
struct TaskTargets;

}  // namespace detail_::loss

template <class LossT>
struct TaskLoss;

/// A weighted sum of losses for multi-task learning. Each loss has its own columns of the output and its own target.
///
///     loss = Σ_t w_t L_t(y[:, columns of t], target t)                                                   (1)
///
///     // Two outputs: a price, and one of five classes. The class −1 means unknown.
///     MultiTask losses{TaskLoss{1, MeanSquaredError{}, 0.5}, TaskLoss{5, CrossEntropy{.ignore = -1}}};
///     Trainer trainer{ctx, model, losses, optim::AdamW{}, Seed{1}};    // the model's output is [N, 6]
///     trainer.step(x, {prices, labels});                               // [N, 1], [N]
///
/// The columns of the tasks are adjacent, in the order of the tasks.
/// Source: Caruana 1997, doi:10.1023/A:1007379606734, sec. 2; weights as in Keras' `loss_weights`.
///
/// If one task ignores the label of an item, the other tasks still count the item. L_t is a mean over the n_t targets
/// that count in task t. With MeanOver::items, the sum is divided by N instead of n_t: L_t becomes L_t · n_t / N.
///
/// Parts of a batch (Trainer.accumulate) and shards (dist::LossOfShards) give the loss (1) of the whole batch if, in
/// each part, all tasks have the same number of targets that count. The gradient of a part is weighted by this number.
/// All tasks share one gradient, so different numbers would need different weights. `counted` therefore throws for a
/// part with different numbers. Use MeanOver::items for tasks that ignore labels, because then all tasks count all
/// items.
/// @param y       [N, Σ columns] in
/// @param target  one per task: trainer.step(x, {prices, labels})
/// @throws ArgumentError unless columns add up to the columns of y, weights are finite, and each target is valid for
///         the loss of its task; `counted` throws ArgumentError unless all tasks have the same number of targets that
///         count
/// @cost   the cost of each loss, and two copies of y; with MeanOver::items the host also waits for the backend,
///         because it needs n_t
template <class... LossT>
struct MultiTask {
  std::tuple<TaskLoss<LossT>...> tasks;

  explicit constexpr MultiTask(TaskLoss<LossT>... of_columns) : tasks(std::move(of_columns)...) {}
  static constexpr std::size_t size = sizeof...(LossT);
  GATEFOLD_REQUIRE(size >= 1, "gatefold: a MultiTask needs at least one TaskLoss");

  template <class T, class B>
  using Target = detail_::loss::TaskTargets<detail_::loss::TargetOf<LossT, T, B>...>;

  template <class T, class B>
  void validate(In<T, 2, B> y, const Target<T, B>& target) const {
    Index columns = 0;
    for_each(
        [&](const auto& task, Index t, Index first, const auto&) {
          expect(task.columns >= 1, "MultiTask", Joined{"columns of task ", t}, "at least 1", task.columns);
          expect(std::abs(task.weight) <= std::numeric_limits<double>::max(), "MultiTask", Joined{"weight of task ", t},
                 "a finite number", task.weight);
          columns = first + task.columns;
        },
        target);
    expect(y.extent(1) == columns, "MultiTask", "columns of y",
           Joined{columns, " (the sum of the columns of all tasks)"}, y.extent(1));
    for_each(
        [&](const auto& task, Index t, Index, const auto& of_task) {
          try {
            task.loss.template validate<T, B>(View<const T, 2, B>(y.data(), y.extent(0), task.columns), of_task);
          } catch (const ArgumentError& error) {
            throw ArgumentError("MultiTask: task " + std::to_string(t) + ": " + error.what());
          }
        },
        target);
  }
  /// Returns the number of targets that count, which must be the same for every task. With MeanOver::items, the targets
  /// of all items count.
  template <class C, class TargetV>
  Index counted(C& ctx, const TargetV& target) const {
    Index of_first = 0;
    for_each(
        [&](const auto& task, Index t, Index, const auto& of_task) {
          const Index found =
              task.mean == MeanOver::items ? target.extent(0) : count(ctx, task, target.extent(0), of_task);
          if (t == 0) of_first = found;
          expect(found == of_first, "MultiTask.counted", Joined{"task ", t},
                 Joined{of_first,
                        " targets that count, as in task 0 (for accumulated parts or shards use TaskLoss{…, "
                        "MeanOver::items})"},
                 found);
        },
        target);
    return of_first;
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    expect_shape("MultiTask.forward", "value", value, {1});
    auto mark = ctx.mark();
    const View<T, 1, B> one = ctx.template scratch<T>(1);
    fill(ctx, value, 0);
    for_each(
        [&](const auto& task, Index, Index first, const auto& of_task) {
          auto inner = ctx.mark();
          task.loss.template forward<T, B>(ctx, part<T, B>(ctx, y, first, task.columns), of_task, one);
          add_scaled(ctx, weight<T>(ctx, task, y.extent(0), of_task), one, value);
        },
        target);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("MultiTask.backward", "dy", dy, {y.extent(0), y.extent(1)});
    for_each(
        [&](const auto& task, Index, Index first, const auto& of_task) {
          auto mark = ctx.mark();
          const View<T, 2, B> dpart = ctx.template scratch<T>(y.extent(0), task.columns);
          task.loss.template backward<T, B>(ctx, part<T, B>(ctx, y, first, task.columns), of_task, dpart);
          B::for_rows(ctx, y.extent(0),
                      functor::PutColumns<T, B>{dpart, weight<T>(ctx, task, y.extent(0), of_task), first, dy});
        },
        target);
  }

 private:
  /// Calls f(task, index of the task, first column of the task, target of the task) for each task.
  template <class F, class TargetV>
  void for_each(const F& f, const TargetV& target) const {
    Index first = 0;
    const auto all = [&]<std::size_t... At>(std::index_sequence<At...>) {
      const auto one = [&](const auto& task, std::size_t t, const auto& of_task) {
        f(task, static_cast<Index>(t), first, of_task);
        first += task.columns;
      };
      (one(std::get<At>(tasks), At, std::get<At>(target)), ...);
    };
    all(std::make_index_sequence<size>{});
  }
  template <class C, class TaskT, class TargetV>
  static Index count(C& ctx, const TaskT& task, Index items, const TargetV& target) {
    return detail_::loss::counted<typename C::Backend>(task.loss, ctx, items, target);
  }
  /// Returns the factor of the loss of a task in the sum (1): its weight. With MeanOver::items, it is weight · n_t / N,
  /// with n_t targets that count and N items.
  template <class T, class C, class TaskT, class TargetV>
  static T weight(C& ctx, const TaskT& task, Index items, const TargetV& target) {
    if (task.mean == MeanOver::targets || items == 0) return static_cast<T>(task.weight);
    return static_cast<T>(task.weight * static_cast<double>(count(ctx, task, items, target)) /
                          static_cast<double>(items));
  }
  /// Copies the columns of the output y that a task reads to scratch memory, and returns the copy.
  template <class T, class B>
  static View<const T, 2, B> part(typename B::Context& ctx, View<const T, 2, B> y, Index first, Index columns) {
    const View<T, 2, B> some = ctx.template scratch<T>(y.extent(0), columns);
    copy_columns(ctx, columns, y, first, some, 0);
    return some;
  }
};

/// One task of a multi-task loss (MultiTask): a loss that reads some columns of the output of a model.
/// @param columns  number of columns of the output that the task reads
/// @param weight   weight of the loss in the sum
/// @param mean     divisor of the mean: targets that count, or all items; see MultiTask
template <class LossT>
struct TaskLoss {
  GATEFOLD_REQUIRE(!detail_::named::Params<LossT>(),
                   "gatefold: a TaskLoss takes a loss without parameters (MeanSquaredError, CrossEntropy, Logistic): "
                   "put learned weights into the model; see docs/how-to/extending.md#loss");
  GATEFOLD_REQUIRE(!detail_::hook::loss::no_batch<LossT>(),
                   "gatefold: put dist::LossOfShards around the MultiTask: dist::LossOfShards{MultiTask{…}, &shard}; "
                   "see docs/how-to/distributed.md");
  Index columns = 1;
  LossT loss;
  double weight = 1;
  MeanOver mean = MeanOver::targets;
};
template <class L>
TaskLoss(Index, L) -> TaskLoss<L>;
template <class L>
TaskLoss(Index, L, double) -> TaskLoss<L>;
template <class L>
TaskLoss(Index, L, double, MeanOver) -> TaskLoss<L>;
template <class... L>
MultiTask(TaskLoss<L>...) -> MultiTask<L...>;

namespace functor {

/// Writes the matrix `part`, times `scale`, to the columns of y from `first` on.
template <class T, class B>
struct PutColumns {
  View<const T, 2, B> part;
  T scale;
  Index first;
  View<T, 2, B> y;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    each_column<T>(lanes, part.extent(1),
                   [&](const auto& at, Index j) { at.store(&y(n, first + j), at.load(&part(n, j)) * scale); });
  }
};

}  // namespace functor

namespace detail_::loss {

/// The targets of a multi-task loss, one view for each task, for example `{prices, labels}`.
template <class... Views>
struct TaskTargets : std::tuple<Views...> {
  using std::tuple<Views...>::tuple;
  Index extent(int) const { return std::get<0>(*this).extent(0); }
};

}  // namespace detail_::loss

}  // namespace gatefold
