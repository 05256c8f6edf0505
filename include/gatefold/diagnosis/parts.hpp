#pragma once

#include <type_traits>

#include "gatefold/diagnosis/layer.hpp"

/// Checks at compile time the parts of each layer and branch that is made of other parts, for example Residual{rule,
/// branch}. A static_assert with its own message reports a wrong number of parts, or a part of a wrong kind. init,
/// Trainer and the free functions call these checks.
namespace gatefold {

GATEFOLD_DECLARE((class FirstT, class SecondT), Mixture, MultiGate, LatentMixture, Competition, Residual, PreNorm,
                 PostNorm, NormedPoint, Block, WithShared, Either);
GATEFOLD_DECLARE((class PartT), Towers, Dropout, PerToken, RelativeKeys, Recompute, Skip, Stack);
template <class... L>
struct Chain;

namespace detail_::policy {

template <class GateT, class ExpertT>
struct Parts<Mixture<GateT, ExpertT>> {
  static constexpr bool swapped = HasDims<GateT> && !HasDims<ExpertT>;
  GATEFOLD_REQUIRE(!swapped,
                   "gatefold: gate and expert are swapped: Mixture{gate, expert}; see docs/how-to/extending.md#expert");
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (swapped) {
      return false;
    } else if constexpr (check_gate<GateT, T, B>()) {
      return check_bank<ExpertT, T, B>();
    } else {
      return false;
    }
  }
};

template <class GateT, class ExpertT>
struct Parts<MultiGate<GateT, ExpertT>> {
  static constexpr bool swapped = HasDims<GateT> && !HasDims<ExpertT>;
  GATEFOLD_REQUIRE(!swapped,
                   "gatefold: gate and expert are swapped: MultiGate{gate, expert, tasks}; see "
                   "docs/how-to/extending.md#expert");
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (swapped) {
      return false;
    } else if constexpr (check_gate<GateT, T, B>() && check_bank<ExpertT, T, B>()) {
      GATEFOLD_EXPECT((std::is_same_v<Plan<GateT, T, B>, SparsePlan<T, B>>),
                      "gatefold: the gate of a MultiGate must write a SparsePlan, because the tasks share the slots of "
                      "an item; the slots of a SoftMoe are not items; see docs/how-to/extending.md#gate")
      return true;
    } else {
      return false;
    }
  }
};

template <class GateT, class ExpertT>
struct Parts<LatentMixture<GateT, ExpertT>> {
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (Parts<Mixture<GateT, ExpertT>>::template check<T, B>()) {
      GATEFOLD_EXPECT((std::is_same_v<Plan<GateT, T, B>, SparsePlan<T, B>>),
                      "gatefold: the gate of a LatentMixture must write a SparsePlan, because the experts read a "
                      "projection of the items; the slots of a SoftMoe are not items; see "
                      "docs/how-to/extending.md#gate")
      return true;
    } else {
      return false;
    }
  }
};

template <class GateT, class ExpertT>
struct Parts<Competition<GateT, ExpertT>> {
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (Parts<Mixture<GateT, ExpertT>>::template check<T, B>()) {
      GATEFOLD_EXPECT(
          (requires { typename GateT::Selection; }),
          "gatefold: the gate of a Competition must be a ComposedGate, for example SoftmaxTopK, because the "
          "router loss needs its probabilities; see docs/how-to/routers.md#competition-between-experts")
      return true;
    } else {
      return false;
    }
  }
};

template <class ExpertT>
struct Parts<Towers<ExpertT>> {
  template <class T, class B>
  static constexpr bool check() {
    return check_bank<ExpertT, T, B>();
  }
};

template <class Rule, class BranchT>
struct Parts<Residual<Rule, BranchT>> {
  static constexpr bool has_branch = HasDims<BranchT>, swapped = !has_branch && HasDims<Rule>,
                        has_optimizer = IsOptimizer<Rule>,
                        has_rule = !has_branch || (std::is_class_v<Rule> && !HasDims<Rule> && !CountsExperts<Rule>);
  GATEFOLD_REQUIRE(
      !has_optimizer,
      "gatefold: this is an optimizer (gatefold::optim), which steps parameters; a residual layer needs an update rule "
      "(gatefold::update); see docs/how-to/extending.md#rule");
  GATEFOLD_REQUIRE(!swapped,
                   "gatefold: rule and branch are swapped: Residual{rule, branch}; see docs/how-to/extending.md#rule");
  GATEFOLD_REQUIRE(
      has_rule,
      "gatefold: expected an update rule as first part of a Residual, got a gate, an expert, a norm, a branch or a "
      "layer: Residual{rule, branch}, for example update::HeavyBall{} and Mixture{gate, expert}; see "
      "docs/how-to/extending.md#rule");
  GATEFOLD_REQUIRE(has_branch || swapped,
                   "gatefold: the second part of a Residual must be a branch with in_dim() and out_dim(), for example "
                   "Mixture{gate, expert} or Attention; see docs/how-to/extending.md#branch");
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (!has_branch || !has_rule || has_optimizer) {
      return false;
    } else if constexpr (ExpertTypes<BranchT, T, B> && !Branch<BranchT, T, B>) {
      GATEFOLD_REQUIRE((!ExpertTypes<BranchT, T, B>),
                       "gatefold: a Residual needs a branch, got an expert: write Residual{rule, OneExpert{expert}}; "
                       "see docs/how-to/extending.md#expert");
      return false;
    } else if constexpr (!check_reads_rows<BranchT, T, B>() || !check_rule<Rule, T, B>()) {
      return false;
    } else {
      return check_branch<BranchT, T, B>();
    }
  }
};

template <class Norm, class BranchT>
struct Parts<PreNorm<Norm, BranchT>> {
  template <class T, class B>
  static constexpr bool check() {
    GATEFOLD_EXPECT((!Expert<BranchT, T, B> || !Branch<Norm, T, B>),
                    "gatefold: norm and branch are swapped: PreNorm{norm, branch}; see docs/how-to/extending.md#branch")
    if constexpr (check_norm<Norm, T, B>()) {
      return check_branch<BranchT, T, B>();
    } else {
      return false;
    }
  }
};

template <class LayerT, class Norm>
struct Parts<PostNorm<LayerT, Norm>> {
  template <class T, class B>
  static constexpr bool check() {
    GATEFOLD_EXPECT((!Layer<Norm, T, B>),
                    "gatefold: layer and norm are swapped: PostNorm{layer, norm}; see docs/how-to/extending.md#branch")
    return fits<AsLayer<LayerT, T, B>> && check_norm<Norm, T, B>();
  }
};

template <class Norm, class LayerT>
struct Parts<NormedPoint<Norm, LayerT>> {
  template <class T, class B>
  static constexpr bool check() {
    GATEFOLD_EXPECT(
        (!Layer<Norm, T, B>),
        "gatefold: norm and layer are swapped: NormedPoint{norm, layer}; see docs/how-to/extending.md#branch")
    return fits<AsLayer<LayerT, T, B>> && check_norm<Norm, T, B>();
  }
};

template <class AttentionT, class LayerT>
struct Parts<Block<AttentionT, LayerT>> {
  template <class T, class B>
  static constexpr bool check() {
    using First = AsLayer<AttentionT, T, B>;
    using Second = AsLayer<LayerT, T, B>;
    if constexpr (!fits<First> || !fits<Second>) {
      return false;
    } else {
      constexpr bool first = HasTrace<First, T, B>, second = HasTrace<Second, T, B>;
      GATEFOLD_EXPECT(
          first || !second,
          "gatefold: attention and layer are swapped: Block{attention, layer}; see docs/how-to/extending.md#branch")
      GATEFOLD_EXPECT(
          first,
          "gatefold: the first part of a Block must be attention, whose trace the second part can read: Block{Residual{"
          "update::Plain{}, Attention{...}}, layer}; join other layers with Chain{a, b}; see "
          "docs/how-to/extending.md#branch")
      GATEFOLD_EXPECT(
          (std::is_same_v<gatefold::Carry<First, T, B>, Nothing<T, B>>),
          "gatefold: the attention of a Block must not have a carry (momentum); use update::Plain around it")
      return true;
    }
  }
};

template <class BranchT, class SharedT>
struct Parts<WithShared<BranchT, SharedT>> {
  GATEFOLD_REQUIRE(!detail_::hook::expert::with_noise<SharedT>(),
                   "gatefold: the shared expert draws random numbers, but WithShared passes no noise to it; see "
                   "docs/how-to/extending.md#expert");
  template <class T, class B>
  static constexpr bool check() {
    GATEFOLD_EXPECT((!Expert<BranchT, T, B> || !Branch<SharedT, T, B>),
                    "gatefold: branch and shared expert are swapped: WithShared{branch, expert}; see "
                    "docs/how-to/extending.md#branch")
    if constexpr (check_branch<BranchT, T, B>()) {
      return check_bank<SharedT, T, B>();
    } else {
      return false;
    }
  }
};

template <class FirstT, class SecondT>
struct Parts<Either<FirstT, SecondT>> {
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (check_branch<FirstT, T, B>() && check_branch<SecondT, T, B>()) {
      GATEFOLD_EXPECT((std::is_same_v<gatefold::Extra<SecondT, T, B>, Nothing<T, B>>),
                      "gatefold: the second branch of an Either must not take extra inputs; put the branch that takes "
                      "them first: Either{first, second}. If both have one type, use stack_of(layers); see "
                      "docs/how-to/extending.md#branch")
      return true;
    } else {
      return false;
    }
  }
};

template <class BranchT>
struct Parts<Dropout<BranchT>> : OneBranch<BranchT> {};

/// Checks a layer that has one part: the part must be a layer, a branch or an expert.
template <class LayerT>
struct OneLayer {
  template <class T, class B>
  static constexpr bool check() {
    return fits<AsLayer<LayerT, T, B>>;
  }
};
template <class LayerT>
struct Parts<Skip<LayerT>> : OneLayer<LayerT> {};
template <class LayerT>
struct Parts<Recompute<LayerT>> : OneLayer<LayerT> {};

/// Checks a part that must read rows: the part must be a layer, a branch or an expert, and must not read ids.
template <class LayerT>
struct OneLayerOfRows {
  template <class T, class B>
  static constexpr bool check() {
    using Inner = AsLayer<LayerT, T, B>;
    if constexpr (fits<Inner>) {
      return check_reads_rows<Inner, T, B>();
    } else {
      return false;
    }
  }
};
template <class LayerT>
struct Parts<PerToken<LayerT>> : OneLayerOfRows<LayerT> {};
template <class LayerT>
struct Parts<Stack<LayerT>> : OneLayerOfRows<LayerT> {};

template <class FirstT, class... RestT>
struct Parts<Chain<FirstT, RestT...>> {
  template <class T, class B>
  static constexpr bool check() {
    return fits<AsLayer<FirstT, T, B>> && (OneLayerOfRows<RestT>::template check<T, B>() && ...);
  }
};

}  // namespace detail_::policy

// The compiler chooses the deduction guides below if you construct a layer or branch from a wrong number of parts, or
// from parts in a wrong order (Dropout, PerToken). A static_assert then describes the mistake.

namespace detail_::lookup {

template <class...>
inline constexpr bool are_stacked = false;
template <class L>
inline constexpr bool are_stacked<L> = true;
template <class L, class Count>
inline constexpr bool are_stacked<L, Count> = std::is_convertible_v<Count, Index>;

template <class...>
inline constexpr bool are_shared = false;
template <class Br, class S>
inline constexpr bool are_shared<Br, S> = true;
template <class Br, class S, class W>
inline constexpr bool are_shared<Br, S, W> = std::is_convertible_v<W, double>;

template <class...>
inline constexpr bool are_tasks = false;
template <class G, class E>
inline constexpr bool are_tasks<G, E> = true;
template <class G, class E, class Count>
inline constexpr bool are_tasks<G, E, Count> = std::is_convertible_v<Count, Index>;
/// True for the parts of a LatentMixture: a Mixture, the number of columns, and optionally `bias`.
template <class...>
inline constexpr bool is_latent = false;
template <class G, class E, class Dim>
inline constexpr bool is_latent<Mixture<G, E>, Dim> = std::is_convertible_v<Dim, Index>;
template <class G, class E, class Dim>
inline constexpr bool is_latent<Mixture<G, E>, Dim, bool> = std::is_convertible_v<Dim, Index>;

}  // namespace detail_::lookup

// Defines a specialisation for misplaced parts, whose static_assert has the text `sentence`.
#define GATEFOLD_MISPLACED(composition, sentence)             \
  template <class... P>                                       \
  struct GATEFOLD_BARE composition {                          \
    GATEFOLD_REQUIRE(detail_::policy::never<P...>, sentence); \
  }
// Reports wrong parts of a composition that has two template parameters. Defines a deduction guide, which the compiler
// chooses if the parts P fulfil `condition`, and the specialisation that it selects, with the text `sentence`.
#define GATEFOLD_WRONG_PARTS(Composition, condition, sentence)                                          \
  template <class... P, class = std::enable_if_t<condition>, class = void>                              \
  Composition(P...) -> Composition<detail_::policy::Misplaced<P...>, detail_::policy::Misplaced<P...>>; \
  GATEFOLD_MISPLACED((Composition<detail_::policy::Misplaced<P...>, detail_::policy::Misplaced<P...>>), sentence)

GATEFOLD_WRONG_PARTS(Mixture, sizeof...(P) != 2,
                     "gatefold: a Mixture takes two parts, Mixture{gate, expert}: put the update rule around it, "
                     "Residual{rule, Mixture{gate, expert}}, and pass experts of different types as one part, "
                     "Experts{std::tuple{a, b}}; see docs/how-to/extending.md#expert");
GATEFOLD_WRONG_PARTS(LatentMixture, !detail_::lookup::is_latent<P...>,
                     "gatefold: a LatentMixture takes a Mixture and the number of columns of the items: "
                     "LatentMixture{Mixture{gate, expert}, model_dim}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(MultiGate, !detail_::lookup::are_tasks<P...>,
                     "gatefold: a MultiGate takes a gate, an expert and the number of tasks: MultiGate{gate, expert, "
                     "tasks}; see docs/how-to/extending.md#expert");
GATEFOLD_WRONG_PARTS(
    Residual, sizeof...(P) != 2,
    "gatefold: a Residual takes two parts, Residual{rule, branch}, for example update::HeavyBall{} and "
    "Mixture{gate, expert}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(PreNorm, sizeof...(P) != 2,
                     "gatefold: a PreNorm takes two parts, PreNorm{norm, branch}, for example LayerNorm{} and "
                     "Mixture{gate, expert}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(PostNorm, sizeof...(P) != 2,
                     "gatefold: a PostNorm takes two parts, PostNorm{layer, norm}, for example Residual{rule, branch} "
                     "and LayerNorm{}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(NormedPoint, sizeof...(P) != 2,
                     "gatefold: a NormedPoint takes two parts, NormedPoint{norm, layer}, for example LayerNorm{} and "
                     "Residual{rule, branch}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(Block, sizeof...(P) != 2,
                     "gatefold: a Block takes two parts, Block{attention, layer}; see docs/how-to/extending.md#branch");
GATEFOLD_WRONG_PARTS(WithShared, !detail_::lookup::are_shared<P...>,
                     "gatefold: a WithShared takes a branch, an expert and, optionally, a weight: "
                     "WithShared{Mixture{gate, expert}, shared}; see docs/how-to/extending.md#branch");
template <class First, class... Rest, class = std::enable_if_t<!std::is_arithmetic_v<First>>>
Dropout(First, Rest...) -> Dropout<detail_::policy::Misplaced<First, Rest...>>;
GATEFOLD_MISPLACED(
    (Dropout<detail_::policy::Misplaced<P...>>),
    "gatefold: a Dropout takes a rate and a branch: Dropout{rate, branch}; see docs/how-to/extending.md#branch");
template <class L, class Count, class = std::enable_if_t<!std::is_convertible_v<L, Index>>, class = void>
PerToken(L, Count) -> PerToken<detail_::policy::Misplaced<L, Count>>;
GATEFOLD_MISPLACED((PerToken<detail_::policy::Misplaced<P...>>),
                   "gatefold: a PerToken takes a number of tokens and a layer: PerToken{length, layer}; see "
                   "docs/how-to/extending.md#branch");
template <class... P>
RelativeKeys(P...) -> RelativeKeys<detail_::policy::Misplaced<P...>>;
GATEFOLD_MISPLACED((RelativeKeys<detail_::policy::Misplaced<P...>>),
                   "gatefold: a RelativeKeys takes two numbers and a layer: RelativeKeys{window, head_dim, layer}; see "
                   "docs/how-to/extending.md#branch");
template <class... P>
Recompute(P...) -> Recompute<detail_::policy::Misplaced<P...>>;
GATEFOLD_MISPLACED((Recompute<detail_::policy::Misplaced<P...>>),
                   "gatefold: a Recompute takes a layer and, optionally, whether it is enabled: Recompute{layer} or "
                   "Recompute{layer, enabled}; see docs/how-to/extending.md#branch");
template <class... P>
Skip(P...) -> Skip<detail_::policy::Misplaced<P...>>;
GATEFOLD_MISPLACED((Skip<detail_::policy::Misplaced<P...>>),
                   "gatefold: a Skip takes one part, Skip{layer}; join layers with Chain{a, b}; see "
                   "docs/how-to/extending.md#branch");
template <class... P, class = std::enable_if_t<!detail_::lookup::are_stacked<P...>>, class = void>
Stack(P...) -> Stack<detail_::policy::Misplaced<P...>>;
GATEFOLD_MISPLACED((Stack<detail_::policy::Misplaced<P...>>),
                   "gatefold: a Stack takes a layer and a depth, Stack{layer, depth}; join layers of different types "
                   "with Chain{a, b}; see docs/how-to/extending.md#branch");
#undef GATEFOLD_WRONG_PARTS
#undef GATEFOLD_MISPLACED

}  // namespace gatefold
