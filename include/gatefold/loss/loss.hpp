#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// Interface of losses. A loss compares the outputs y of a model with targets. It is a struct of options with these
/// members:
///
///     template <class T, class B> using Target = …;                      // a view
///     validate<T, B>(y, target) const;
///     forward <T, B>(ctx, y, target, value) const;                       // writes the mean to value [1]
///     backward<T, B>(ctx, y, target, dy) const;                          // writes dy
///
/// A loss with learned parameters has a type Params and a function init<T, B>(ctx, seed), and can have a type Saved.
/// Its forward and backward also get the parameters of the model, so that the loss can share some of them:
///
///     forward <T, B>(ctx, params, model, y, target, value, saved) const;
///     backward<T, B>(ctx, params, model, y, target, saved, dy, grads, dmodel) const;   // adds to grads and dmodel
///
/// If the mean of a loss does not include all items, the loss has `counted(ctx, target) const`, which returns the
/// number of items that count. The value of a loss is in memory of the backend; copy it with B::to_host.
namespace gatefold {

namespace functor {

template <class F>
struct InDouble;
template <class T>
struct TakeMean;

/// The weight of one item in a mean: 1 / (number of items that count), or 1 if no item counts. The number is `items`,
/// or `*counted` if that pointer is not null.
struct ShareOfMean {
  Index items;
  const Index* counted = nullptr;  // points to memory of the backend; if not null, used instead of `items`
  template <class T>
  GATEFOLD_HD T of() const {
    const Index count = counted ? *counted : items;
    return count > 0 ? 1 / static_cast<T>(count) : T(1);
  }
};

}  // namespace functor

/// Writes the mean of a loss, value = share · Σ_i f(i) for i < terms, summed in double and in a fixed order. Use it in
/// forward of your own losses.
/// @param share  the factor of the sum, for example {n}, which gives 1/n for a mean over n terms, or 1 if n is 0
/// @throws ArgumentError unless value is [1]
template <class T, class B, class F>
void mean_loss(typename B::Context& ctx, Index terms, functor::ShareOfMean share, const F& f, Out<T, 1, B> value) {
  expect_shape("mean_loss", "value", value, {1});
  auto mark = ctx.mark();
  auto sum = ctx.template scratch<double>(1);
  fill(ctx, sum, 0);
  B::template reduce<double>(ctx, terms, functor::InDouble<F>{f}, sum.data());
  B::for_each(ctx, 1, functor::TakeMean<T>{share, sum.data(), value.data()});
}

/// Computes a loss without parameters: `forward(loss, ctx, y, target, value)` writes its mean to value [1]. T and B are
/// deduced from the outputs.
/// @throws ArgumentError if y, target or value has a wrong shape, or a label is out of range
template <class L, template <class, int, class> class ViewT, class T, class B>
void forward(const L& of_outputs, typename B::Context& ctx, const ViewT<T, 2, B>& y,
             const typename L::template Target<std::remove_const_t<T>, B>& target,
             Out<std::remove_const_t<T>, 1, B> value) {
  of_outputs.template forward<std::remove_const_t<T>, B>(ctx, y, target, value);
}
/// Computes the gradient of a loss without parameters: `backward(loss, ctx, y, target, dy)` writes dy [N, out_dim].
/// @throws ArgumentError if y, target or dy has a wrong shape, or a label is out of range
template <class L, template <class, int, class> class ViewT, class T, class B>
void backward(const L& of_outputs, typename B::Context& ctx, const ViewT<T, 2, B>& y,
              const typename L::template Target<std::remove_const_t<T>, B>& target,
              Out<std::remove_const_t<T>, 2, B> dy) {
  of_outputs.template backward<std::remove_const_t<T>, B>(ctx, y, target, dy);
}

namespace functor {

/// Returns 0 if the label of item n is `ignore`, and 1 otherwise.
template <class B>
struct Counts {
  View<const Index, 1, B> label;
  Index ignore;
  GATEFOLD_HD Index operator()(Index n) const { return label(n) != ignore ? 1 : 0; }
};
/// Returns the term f(i) of a sum as double. A float sum of thousands of similar terms would lose half of its digits.
template <class F>
struct InDouble {
  F f;
  GATEFOLD_HD double operator()(Index i) const { return static_cast<double>(f(i)); }
};
template <class T>
struct TakeMean {
  ShareOfMean share;
  const double* sum;
  T* value;
  GATEFOLD_HD void operator()(Index) const { *value = static_cast<T>(*sum * share.template of<double>()); }
};
struct SetIndex {
  Index value;
  Index* to;
  GATEFOLD_HD void operator()(Index) const { *to = value; }
};

}  // namespace functor

/// The parameters of a model and of its loss in one struct, for losses with learned parameters. Gradient clipping
/// therefore uses one norm over both, and a checkpoint contains both.
template <class ModelP, class LossP>
struct ModelAndLoss {
  ModelP model;
  LossP loss;
  GATEFOLD_PACK(model, loss)
};

namespace detail_::loss {

template <class LossT, class T, class B>
concept HasTarget = requires {
  typename LossT::template Target<T, B>;
};
template <class LossT, class T, class B>
auto target_of() {
  if constexpr (HasTarget<LossT, T, B>) {
    return std::type_identity<typename LossT::template Target<T, B>>{};
  } else {
    GATEFOLD_REQUIRE(
        std::is_void_v<LossT>,
        "gatefold: this is not a loss (for example MeanSquaredError, CrossEntropy, Logistic), because it has no "
        "template Target<T, B>; use Trainer{ctx, model, loss, optimizer, Seed{1}}; see docs/how-to/your_data.md");
    return std::type_identity<Nothing<T, B>>{};
  }
}
/// The type of the targets that a loss compares with outputs, for example a view of labels.
template <class LossT, class T, class B>
using TargetOf = typename decltype(target_of<LossT, T, B>())::type;

template <class LossT, class T, class B>
concept HasValidate = requires(const LossT loss, View<const T, 2, B> y, const TargetOf<LossT, T, B>& target) {
  loss.template validate<T, B>(y, target);
};
template <class LossT, class ModelP, class T, class B>
concept HasForward = requires(const LossT loss, typename B::Context& ctx, const Params<LossT, T, B>& params,
                              const ModelP& model, View<const T, 2, B> y, const TargetOf<LossT, T, B>& target,
                              View<T, 1, B> value, Saved<LossT, T, B>& saved) {
  requires(!detail_::named::Params<LossT>() && requires { loss.template forward<T, B>(ctx, y, target, value); }) ||
      requires {
    loss.template forward<T, B>(ctx, params, model, y, target, value, saved);
  };
};
template <class LossT, class ModelP, class T, class B>
concept HasBackward = requires(const LossT loss, typename B::Context& ctx, const Params<LossT, T, B>& params,
                               const ModelP& model, View<const T, 2, B> y, const TargetOf<LossT, T, B>& target,
                               const Saved<LossT, T, B>& saved, View<T, 2, B> dy, Params<LossT, T, B>& grads,
                               ModelP& dmodel) {
  requires(!detail_::named::Params<LossT>() && requires { loss.template backward<T, B>(ctx, y, target, dy); }) ||
      requires {
    loss.template backward<T, B>(ctx, params, model, y, target, saved, dy, grads, dmodel);
  };
};

/// Returns true if LossT has the interface of a loss, for a model with parameters ModelP. If it does not, the compiler
/// reports the first unmet requirement. A missing type Target is not reported again, because target_of has reported it.
template <class LossT, class ModelP, class T, class B>
constexpr bool check_loss() {
  constexpr bool has_target = HasTarget<LossT, T, B>;
  if constexpr (has_target) {
    GATEFOLD_EXPECT((HasValidate<LossT, T, B>),
                    "gatefold: a loss needs validate<T, B>(y, target) const; see docs/how-to/extending.md#loss")
    GATEFOLD_EXPECT((HasForward<LossT, ModelP, T, B>),
                    "gatefold: a loss needs forward<T, B>(ctx, y, target, value) const, with Params forward<T, B>(ctx, "
                    "params, model, y, target, value, saved) const; see docs/how-to/extending.md#loss")
    GATEFOLD_EXPECT((HasBackward<LossT, ModelP, T, B>),
                    "gatefold: a loss needs backward<T, B>(ctx, y, target, dy) const, with Params backward<T, B>(ctx, "
                    "params, model, y, target, saved, dy, grads, dmodel) const; see docs/how-to/extending.md#loss")
    return true;
  } else {
    return false;
  }
}

/// Returns the weight of one item in a mean over the items with labels that are not `ignore`. If labels can be ignored,
/// the backend counts these items and stores the count in scratch memory.
template <class B>
functor::ShareOfMean share_of_mean(typename B::Context& ctx, View<const Index, 1, B> label, Index ignore) {
  if (ignore == ignore_none) return {label.extent(0)};
  auto counted = ctx.template scratch<Index>(1);
  B::for_each(ctx, 1, functor::SetIndex{0, counted.data()});
  B::template reduce<Index>(ctx, label.extent(0), functor::Counts<B>{label, ignore}, counted.data());
  return {label.extent(0), counted.data()};
}

/// Returns the number of labels that are not `ignore`.
/// @cost  waits for the backend if labels can be ignored
template <class B>
Index count_labels(typename B::Context& ctx, View<const Index, 1, B> label, Index ignore) {
  auto mark = ctx.mark();
  const functor::ShareOfMean share = share_of_mean<B>(ctx, label, ignore);
  Index count = share.items;
  if (share.counted) B::to_host(ctx, 1, share.counted, &count);
  return count;
}
/// Returns the number of targets over which a loss takes its mean: the result of its function `counted` if it has one,
/// otherwise `items`.
template <class B, class LossT, class Target>
Index counted(const LossT& of_outputs, typename B::Context& ctx, Index items, const Target& target) {
  if constexpr (detail_::hook::loss::counted<const LossT, typename B::Context, const Target>()) {
    return of_outputs.counted(ctx, target);
  } else {
    return items;
  }
}

/// Multiplies the learned tensors of a pack of gradients by a factor. In a Table, multiplies only the rows that
/// backward wrote.
template <class C, class P>
void scale(C& ctx, double factor, P& grads) {
  for_each_learned(
      [&](const Name&, auto& g) {
        using T = std::remove_cvref_t<decltype(*g.data())>;
        for_each_touched(ctx, g, functor::Scale<T>{static_cast<T>(factor), g.rows().data});
      },
      grads);
}

/// Returns whether a batch is empty for a loss. `items` is the number of items of the batch in this process; other
/// processes can have items too. Returns `no_batch(items)` of the loss if the loss has this function, otherwise
/// whether items is 0.
template <class LossT>
bool no_batch(const LossT& of_outputs, Index items) {
  if constexpr (detail_::hook::loss::no_batch<LossT>()) {
    return of_outputs.no_batch(items);
  } else {
    return items == 0;
  }
}

/// Checks that each item has a label in [0, classes) or the label `ignore`. On a device, only the number of labels is
/// checked.
/// @throws ArgumentError if the number of labels or a label is wrong
template <class B>
void expect_labels(const char* where, View<const Index, 1, B> target, Index items, Index classes, Index ignore) {
  expect_shape(where, "target", target, {items});
  if constexpr (B::is_host)  // N comparisons on a host, because wrong labels would give wrong gradients silently
    for (Index n = 0; n < items; ++n)
      expect((0 <= target(n) && target(n) < classes) || (ignore != ignore_none && target(n) == ignore), where, "target",
             Joined{"labels from 0 to ", classes - 1}, target(n));
}

/// Checks the option of label smoothing.
/// @throws ArgumentError unless 0 <= label_smoothing <= 1
inline void expect_label_smoothing(const char* where, double label_smoothing) {
  expect(0 <= label_smoothing && label_smoothing <= 1, where, "label_smoothing", "0 <= label_smoothing <= 1",
         label_smoothing);
}

/// Checks that a target has the shape of the outputs y [N, C] and values from 0 to 1. On a device, only the shape is
/// checked.
/// @throws ArgumentError if the shape or a value is wrong
template <class T, class B>
void expect_probabilities(const char* where, View<const T, 2, B> y, View<const T, 2, B> target) {
  expect_shape(where, "target", target, {y.extent(0), y.extent(1)});
  if constexpr (B::is_host) {  // N·C comparisons on a host, because a wrong target would give wrong gradients silently
    const auto is_valid = [](T t) { return 0 <= t && t <= 1; };
    bool all = true;  // without an early exit from the loop, so that compilers can vectorise it
    for (Index i = 0; i < target.size(); ++i) all &= is_valid(target.data()[i]);
    for (Index i = 0; !all && i < target.size(); ++i)
      expect(is_valid(target.data()[i]), where, "target", "values from 0 to 1", target.data()[i]);
  }
}

/// Calls validate of a loss for the outputs y of a model and the target. If validate throws, and the input x of the
/// model (`items` items) and the target have different numbers of items, the error names both numbers, because either
/// can be wrong.
/// @throws ArgumentError if `validate` of the loss throws it
template <class T, class B, class LossT, class Target>
void validate_target(const char* where, const LossT& of_outputs, Index items, In<T, 2, B> y, const Target& target) {
  try {
    of_outputs.template validate<T, B>(y, target);
  } catch (const ArgumentError&) {
    if constexpr (requires {
                    { target.extent(0) } -> std::convertible_to<Index>;
                  })
      expect(target.extent(0) == items, where, "x and target", "the same number of items",
             Joined{items, " and ", target.extent(0)});
    throw;
  }
}

/// Gives a Trainer the same functions for losses with and without parameters. `Learned` is the type of all learned
/// parameters: the parameters of the model, or ModelAndLoss if the loss has parameters too.
template <class LossT, class ModelP, class T, class B>
struct Of {
  static constexpr bool fits = check_loss<LossT, ModelP, T, B>();
  static constexpr bool learns = fits && detail_::named::Params<LossT>();
  using Learned = std::conditional_t<learns, ModelAndLoss<ModelP, Params<LossT, T, B>>, ModelP>;
  using Target = TargetOf<LossT, T, B>;

  static Learned init(const LossT& loss, typename B::Context& ctx, Seed seed, ModelP&& model) {
    if constexpr (learns) {
      return {std::move(model), init_params<T, B>(loss, ctx, seed)};
    } else {
      return std::move(model);
    }
  }
  /// Returns the parameters of the model from `learned`, which contains the parameters of the loss too if the loss has
  /// any.
  static auto& model(auto& learned) {
    if constexpr (learns) {
      return learned.model;
    } else {
      return learned;
    }
  }
  static void forward(const LossT& loss, typename B::Context& ctx, const Learned& p, In<T, 2, B> y,
                      const Target& target, Out<T, 1, B> value, Saved<LossT, T, B>& saved) {
    if constexpr (learns) {
      loss.template forward<T, B>(ctx, p.loss, p.model, y, target, value, saved);
    } else {
      loss.template forward<T, B>(ctx, y, target, value);
    }
  }
  static void backward(const LossT& loss, typename B::Context& ctx, const Learned& p, In<T, 2, B> y,
                       const Target& target, const Saved<LossT, T, B>& saved, Out<T, 2, B> dy, Learned& grads) {
    if constexpr (learns) {
      loss.template backward<T, B>(ctx, p.loss, p.model, y, target, saved, dy, grads.loss, grads.model);
    } else {
      loss.template backward<T, B>(ctx, y, target, dy);
    }
  }
};

}  // namespace detail_::loss
}  // namespace gatefold
