#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "gatefold/expert/expert.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/update/update.hpp"

/// Checks at compile time that a type has everything that a branch or a layer needs (layer/layer.hpp). Each mistake has
/// a static_assert with its own message. as_layer converts a part of a model to a layer, or reports the mistake.
/// Trainer and every layer that contains other layers call as_layer.
namespace gatefold {

template <class ExpertT>
struct OneExpert;
template <class BranchT>
struct NoResidual;

namespace detail_::policy {

template <class L>
concept HasDims = requires(const L layer) {
  { layer.in_dim() } -> std::convertible_to<Index>;
  { layer.out_dim() } -> std::convertible_to<Index>;
};
/// True if the function forward of a branch L accepts these arguments. `Given` is the type of the argument `params`.
/// check_branch also passes Foreign as `Given`, which forward must not accept. `More` are the types of the arguments
/// after `extra`.
template <class L, class T, class B, class Given, class... More>
concept BranchForwardOf = requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, const Given& params,
                                   Saved<L, T, B>& saved, const Extra<L, T, B>& extra, const More&... more) {
  branch.forward(a.ctx, params, x, a.out, saved, extra, more...);
};
template <class L, class T, class B>
concept BranchForward = BranchForwardOf<L, T, B, Params<L, T, B>, functor::NoStep<T>>;
template <class L, class T, class B, class Given = Params<L, T, B>>
concept BranchBackward = requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, ItemsGrad<L, T, B>& dx,
                                  const Given& params, const Saved<L, T, B>& saved, Params<L, T, B>& grads,
                                  const Extra<L, T, B>& extra, ExtraGrad<L, T, B>& dextra) {
  branch.backward(a.ctx, params, x, saved, a.in, dx, grads, extra, dextra);
};
template <class L, class T, class B>
concept Branch = HasDims<L> && HasInit<L, T, B> && BranchForward<L, T, B> && BranchBackward<L, T, B>;
/// True for a branch whose forward has `extra` or `saved` as its last parameter, so that it does not accept a step. A
/// step is the functor with which an update rule uses the output.
template <class L, class T, class B>
concept ForwardWithoutStep = BranchForwardOf<L, T, B, Params<L, T, B>> ||
    requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, const Params<L, T, B>& params,
             Saved<L, T, B>& saved) {
  branch.forward(a.ctx, params, x, a.out, saved);
};

template <class L, class T, class B>
concept LayerBegin = requires(const L layer, Probe<T, B> a, const Params<L, T, B>& params, Carry<L, T, B>& carry) {
  layer.begin(a.ctx, params, Index(1), carry);
};
template <class L, class T, class B, class Given = Params<L, T, B>>
concept LayerForward = requires(const L layer, Probe<T, B> a, const Items<L, T, B>& x, const Given& params,
                                Carry<L, T, B>& carry, Saved<L, T, B>& saved, const Extra<L, T, B>& extra) {
  layer.forward(a.ctx, params, x, carry, a.out, saved, extra);
};
template <class L, class T, class B, class Given = Params<L, T, B>>
concept LayerBackward = requires(const L layer, Probe<T, B> a, const Items<L, T, B>& x, ItemsGrad<L, T, B>& dx,
                                 const Given& params, const Saved<L, T, B>& saved, Carry<L, T, B>& dcarry,
                                 Params<L, T, B>& grads, const Extra<L, T, B>& extra, ExtraGrad<L, T, B>& dextra) {
  layer.backward(a.ctx, params, x, saved, a.in, dcarry, dx, grads, extra, dextra);
};
template <class L, class T, class B>
concept Layer =
    HasDims<L> && HasInit<L, T, B> && LayerBegin<L, T, B> && LayerForward<L, T, B> && LayerBackward<L, T, B>;

/// True for a layer with a function `trace`, which returns the attention trace (the tensors of an attention that a gate
/// can read). The attention can be at any depth in the layer.
template <class L, class T, class B>
concept HasTrace = requires(const L layer, const Params<L, T, B>& params, const Saved<L, T, B>& saved) {
  layer.trace(params, saved);
};

/// True for a branch or layer whose input is ids (whole numbers, for example tokens) instead of rows.
template <class L, class T, class B>
inline constexpr bool reads_ids = std::is_same_v<Items<L, T, B>, View<const Index, 1, B>>;

/// Returns true if L is a branch. If it is not, a static_assert names the first unmet requirement.
template <class L, class T, class B>
constexpr bool check_branch() {
  GATEFOLD_EXPECT((!Layer<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got a layer: write Residual{rule, PreNorm{norm, branch}}, with the "
                  "rule outside and the norm inside, or join layers with Chain{a, b}; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((!GateTypes<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got a gate: write Mixture{gate, expert}; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((!Expert<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got an expert: write OneExpert{expert} or Mixture{gate, expert}; "
                  "see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasDims<L>),
                  "gatefold: a branch needs Index in_dim() const and Index out_dim() const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasInit<L, T, B>),
                  "gatefold: a branch with Params needs Params<T, B> init<T, B>(ctx, seed) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((BranchForward<L, T, B> || !ForwardWithoutStep<L, T, B>),
                  "gatefold: forward of this branch lacks its last parameter, the step of the update rule: declare "
                  "forward(ctx, params, x, u, saved, extra, const auto& step) const and end it with run_step(ctx, u, "
                  "step); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (BranchForward<L, T, B>),
      "gatefold: a branch needs forward(ctx, params, x, u, saved, extra, step) const, with params as const Params<T, "
      "B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((BranchBackward<L, T, B>),
                  "gatefold: a branch needs backward(ctx, params, x, saved, du, dx, grads, extra, dextra) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!BranchForwardOf<L, T, B, Params<L, T, B>, functor::NoStep<T>, Foreign>),
      "gatefold: forward of this branch takes any number of arguments (auto&&...), so it would drop the step, its last "
      "argument: declare const auto& step and end with run_step(ctx, u, step); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!BranchForwardOf<L, T, B, Foreign, functor::NoStep<T>> && !BranchBackward<L, T, B, Foreign>),
      "gatefold: forward and backward of a branch must take params as const Params<T, B>&, or as const Nothing<T, B>& "
      "if the branch has no parameters. const auto& would also accept the parameters of another model; see "
      "docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::branch::all<L, T, B>() && parts_fit<L, T, B>();
}

/// Returns true if L is a layer. If it is not, a static_assert names the first unmet requirement.
template <class L, class T, class B>
constexpr bool check_layer() {
  GATEFOLD_EXPECT((HasDims<L>),
                  "gatefold: a layer needs Index in_dim() const and Index out_dim() const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasInit<L, T, B>),
                  "gatefold: a layer with Params needs Params<T, B> init<T, B>(ctx, seed) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((LayerBegin<L, T, B>),
                  "gatefold: a layer needs begin(ctx, params, items, carry) const, with params as const Params<T, B>&, "
                  "or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (LayerForward<L, T, B>),
      "gatefold: a layer needs forward(ctx, params, x, carry, y, saved, extra) const, with params as const Params<T, "
      "B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (LayerBackward<L, T, B>),
      "gatefold: a layer needs backward(ctx, params, x, saved, dy, dcarry, dx, grads, extra, dextra) const; "
      "see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!LayerForward<L, T, B, Foreign> && !LayerBackward<L, T, B, Foreign>),
      "gatefold: forward and backward of a layer must take params as const Params<T, B>&, or as const Nothing<T, B>& "
      "if the layer has no parameters. const auto& would also accept the parameters of another model; see "
      "docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::layer::all<L, T, B>() && parts_fit<L, T, B>();
}

/// Returns true if E can be the experts of a mixture. If it cannot, a static_assert names the first unmet requirement.
template <class E, class T, class B>
constexpr bool check_bank() {
  GATEFOLD_EXPECT(
      (Expert<E, T, B> || (!Branch<E, T, B> && !Layer<E, T, B>)),
      "gatefold: expected an expert, for example Linear or Mlp<Gelu>, got a branch or a layer: Mixture{gate, expert}, "
      "OneExpert{expert} and WithShared{branch, expert} take an expert; see docs/how-to/extending.md#expert")
  return check_expert<E, T, B>();
}

/// Returns true if the branch or layer L reads rows. If it reads ids (whole numbers, for example tokens), a
/// static_assert describes the mistake.
template <class L, class T, class B>
constexpr bool check_reads_rows() {
  GATEFOLD_EXPECT((!reads_ids<L, T, B>),
                  "gatefold: this part reads ids, which only the first layer of a Chain may do: the other layers of a "
                  "Chain and the parts of a Stack, a PerToken and a Residual read rows; see "
                  "docs/how-to/extending.md#branch")
  return true;
}
template <class L, class T, class B>
constexpr bool check_items() {
  GATEFOLD_EXPECT((reads_ids<L, T, B> || std::is_same_v<Items<L, T, B>, View<const T, 2, B>>),
                  "gatefold: Items of a branch or layer must be View<const T, 2, B> (rows) or View<const Index, 1, B> "
                  "(ids); see docs/how-to/extending.md#branch")
  return true;
}

/// Returns true if N can be a norm, for example a LayerNorm. If it cannot, a static_assert names the first unmet
/// requirement.
template <class N, class T, class B>
constexpr bool check_norm() {
  GATEFOLD_EXPECT(
      (Expert<N, T, B> || Branch<N, T, B>),
      "gatefold: a norm must be an expert or a branch, for example LayerNorm{} or RmsNorm{}: PreNorm{norm, branch}, "
      "PostNorm{layer, norm}, NormedPoint{norm, layer}; see docs/how-to/extending.md#branch")
  return true;
}

/// Reports a type that you may have passed by mistake as a layer, branch or expert: an incomplete layer, branch or
/// expert, or an activation. A static_assert names the mistake, and the function returns false. It returns true for all
/// other types.
template <class L, class T, class B>
constexpr bool check_almost() {
  GATEFOLD_EXPECT((!requires(T v) { L::value(v); }),
                  "gatefold: expected a layer, a branch or an expert, got an activation: make it a part of a Chain, "
                  "Chain{Linear{8, 32}, Gelu{}, Linear{32, 4}}, or the template argument of an expert, Mlp<Gelu>{8, "
                  "16}; see docs/how-to/extending.md#expert")
  if constexpr (HasDims<L> && detail_::named::begin<L>()) {
    return check_layer<L, T, B>();
  } else if constexpr (ExpertTypes<L, T, B>) {
    return check_expert<L, T, B>();
  } else if constexpr (HasDims<L> &&
                       (ForwardWithoutStep<L, T, B> || BranchForward<L, T, B> || BranchBackward<L, T, B>)) {
    return check_branch<L, T, B>();
  } else {
    return true;
  }
}

template <class ExpertT>
struct Parts<OneExpert<ExpertT>> {
  template <class T, class B>
  static constexpr bool check() {
    return check_bank<ExpertT, T, B>();
  }
};
/// Checks a layer or branch that has one part: the part must be a branch.
template <class BranchT>
struct OneBranch {
  template <class T, class B>
  static constexpr bool check() {
    return check_branch<BranchT, T, B>();
  }
};
template <class BranchT>
struct Parts<NoResidual<BranchT>> : OneBranch<BranchT> {};

}  // namespace detail_::policy

template <class... P>
OneExpert(P...) -> OneExpert<detail_::policy::Misplaced<P...>>;
template <class... P>
struct OneExpert<detail_::policy::Misplaced<P...>> {
  GATEFOLD_REQUIRE(detail_::policy::never<P...>,
                   "gatefold: a OneExpert takes one part, OneExpert{expert}, for example Mlp<Gelu>{...}; for a gate "
                   "and several experts use Mixture{gate, expert}; see docs/how-to/extending.md#expert");
};

template <class... P>
NoResidual(P...) -> NoResidual<detail_::policy::Misplaced<P...>>;
template <class... P>
struct NoResidual<detail_::policy::Misplaced<P...>> {
  GATEFOLD_REQUIRE(detail_::policy::never<P...>,
                   "gatefold: a NoResidual takes one part, NoResidual{branch}; for an update rule use Residual{rule, "
                   "branch}; see docs/how-to/extending.md#branch");
};

namespace detail_::lookup {

/// Replaces a part of a model that cannot be a layer, after a static_assert has reported the part. The members of
/// Refused accept any arguments, so that no other errors follow.
struct Refused {
  Index in_dim() const { return 0; }
  Index out_dim() const { return 0; }
  void begin(auto&&...) const {}
  void forward(auto&&...) const {}
  void backward(auto&&...) const {}
};

template <class L, class T, class B>
auto as_layer(const L& part) {
  if constexpr (detail_::policy::Layer<L, T, B>) {
    if constexpr (detail_::policy::check_items<L, T, B>() && detail_::policy::check_layer<L, T, B>()) {
      return part;
    } else {
      return Refused{};
    }
  } else if constexpr (detail_::policy::Branch<L, T, B>) {
    if constexpr (detail_::policy::check_branch<L, T, B>() && detail_::policy::check_items<L, T, B>()) {
      return NoResidual<L>{part};
    } else {
      return Refused{};
    }
  } else if constexpr (detail_::policy::Expert<L, T, B>) {
    return NoResidual<OneExpert<L>>{{part}};
  } else if constexpr (detail_::policy::check_almost<L, T, B>()) {
    GATEFOLD_REQUIRE(
        (detail_::policy::Layer<L, T, B>),
        "gatefold: a Stack, Chain, Block, PerToken or Trainer needs a layer, a branch or an expert: a type with the "
        "in_dim, out_dim, init, forward and backward of one of these families; see docs/how-to/extending.md");
    return Refused{};
  } else {
    return Refused{};
  }
}

}  // namespace detail_::lookup

namespace detail_::policy {

/// True if a part of a model can be a layer, that is, if as_layer did not replace it by the placeholder Refused.
template <class Inner>
inline constexpr bool fits = !std::is_same_v<Inner, detail_::lookup::Refused>;

}  // namespace detail_::policy

/// The type of the layer that a model makes from a part L. It is L itself for a layer, NoResidual{branch} for a branch,
/// and NoResidual{OneExpert{expert}} for an expert.
template <class L, class T, class B>
using AsLayer = decltype(detail_::lookup::as_layer<L, T, B>(std::declval<const L&>()));
/// Returns a part of a model as a layer (see AsLayer). For a layer, this is a reference to the part itself.
template <class T, class B, class L>
decltype(auto) as_layer(const L& part) {
  if constexpr (std::is_same_v<AsLayer<L, T, B>, L>) {
    return (part);
  } else {
    return detail_::lookup::as_layer<L, T, B>(part);
  }
}

namespace detail_::lookup {

template <class P, class T, class B>
auto as_branch(const P& part) {
  if constexpr (detail_::policy::Branch<P, T, B>) {
    return part;
  } else {
    return OneExpert<P>{part};
  }
}

}  // namespace detail_::lookup

/// The type of the branch that a layer makes from a part P, for example from a norm. It is P itself for a branch, and
/// OneExpert{expert} for an expert.
template <class P, class T, class B>
using AsBranch = decltype(detail_::lookup::as_branch<P, T, B>(std::declval<const P&>()));
template <class T, class B, class P>
AsBranch<P, T, B> as_branch(const P& part) {
  return detail_::lookup::as_branch<P, T, B>(part);
}

namespace detail_::lookup {

template <class T, class B>
inline constexpr bool are_elements = false;
template <class T, class B>
requires requires { typename B::Context; }
inline constexpr bool are_elements<T, B> = std::is_floating_point_v<T>;

template <class L, template <class, class> class ParamsT, class T, class B>
constexpr bool are_params_of() {
  if constexpr (are_elements<T, B>)
    return std::is_same_v<ParamsT<T, B>, Params<L, T, B>>;
  else
    return false;
}

/// True if an argument of infer (items, carry, y or extra inputs) belongs to a different model, element type or
/// backend. In this case, its type fits no parameter of infer for the layer L with element type T and backend B.
template <class L, class T, class B, class A>
inline constexpr bool is_foreign =
    !std::is_convertible_v<A, Items<L, T, B>> && !std::is_convertible_v<A, View<T, 2, B>> &&
    !std::is_same_v<A, Carry<L, T, B>&> && !std::is_convertible_v<A, const Extra<L, T, B>&>;
template <class L, class C, class T, class B, class... A>
constexpr bool any_foreign() {
  if constexpr (std::is_floating_point_v<T> && requires {
                  typename C::Backend;
                  typename B::Context;
                })
    return sizeof...(A) < 2 || !std::is_convertible_v<C&, typename B::Context&> || (is_foreign<L, T, B, A> || ...);
  else
    return false;
}

}  // namespace detail_::lookup

/// This overload of infer is chosen if the arguments belong to different models, element types or backends, or if an
/// argument is missing. It does not compile, and a static_assert describes the mistake.
template <class L, class C, template <class, class> class ParamsT, class T, class B, class... A,
          class = std::enable_if_t<(detail_::lookup::are_elements<T, B> &&
                                    !detail_::lookup::are_params_of<L, ParamsT, T, B>()) ||
                                   detail_::lookup::any_foreign<L, C, T, B, A...>()>>
void infer(const L&, C&, const ParamsT<T, B>&, A&&...) {
  GATEFOLD_REQUIRE(std::is_void_v<L>,
                   "gatefold: the arguments of infer must belong to one model L, one element type T and one backend B: "
                   "B::Context, Params<L, T, B>, items, Carry<L, T, B> (if L is a layer), y and Extra<L, T, B>; see "
                   "docs/reference/functions.md");
}
/// This overload of backward is chosen for too few or too many arguments. It does not compile, and a static_assert
/// describes the mistake.
template <class L, class C, template <class, class> class ParamsT, class T, class B, class... A,
          class = std::enable_if_t<detail_::lookup::are_elements<T, B> && (sizeof...(A) < 5 || sizeof...(A) > 7)>>
void backward(const L&, C&, const ParamsT<T, B>&, A&&...) {
  GATEFOLD_REQUIRE(std::is_void_v<L>,
                   "gatefold: wrong number of arguments: call backward(layer, ctx, params, x, saved, dy, dcarry, dx, "
                   "grads) for a layer or backward(branch, ctx, params, x, saved, du, dx, grads) for a branch, with "
                   "extra inputs as last argument if there are any; see docs/reference/functions.md");
}

}  // namespace gatefold
