#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/optim/clone.hpp"

/// Removes, adds, copies and reorders the experts of a trained model.
namespace gatefold {

GATEFOLD_FUNCTORS((class T), SelectExperts);

class ExpertLists;

/// Returns the parameters, or an optimizer's state, of a model whose experts are copies of experts of another model. In
/// every Mixture and MultiGate, new expert i is a copy of expert list[i].
///
///     auto params = select_experts(ctx, trainer.params, {0, 2, 5});     // for the same model with 3 experts
///
/// Every tensor of an expert is copied bit for bit, and so are the entries of the gate for this expert: the column of
/// the scores, the bias, the noise weights. All other tensors are copied unchanged. If the list contains all experts
/// that the gate picked for an item, the new output of the item depends on how the gate computes weights. The output
/// has the same bits as before if the weights of the picks are computed only from these picks (SigmoidBias; K = 1,
/// renormalised). The output is equal up to rounding if the weights are renormalised softmax probabilities (TopK). The
/// output changes if the weights are not renormalised, because they are then a softmax over all experts. If experts
/// have equal scores, the expert with the lower new index is picked first.
/// @param pack  parameters, gradients or an optimizer's state of a Mixture, or of a model with mixtures
/// @param list  one list for all mixtures, a `std::vector<Index>`, or one list for each mixture, a
///         `std::vector<std::vector<Index>>` (see ExpertLists)
/// @throws ArgumentError if an entry of a list is not the index of an expert, a list is empty, the number of lists does
///         not divide the number of mixtures in the pack (an optimizer's state can contain each mixture several times),
///         the pack has no mixture, or a mixture has several kinds of experts (`Experts`) and its list is not sorted by
///         kind. The function does not compile for a gate that chooses without tensors (HashGate), for a
///         HierarchicalGate, nor for a model on shards
/// @cost   memory of the result and one copy; allocates
template <class C, class P>
P select_experts(C& ctx, const P& pack, const ExpertLists& list);

/// Lists of the experts from which new experts are copied: new expert i is a copy of expert list[i]. A single list
/// applies to every mixture of a model. A vector of lists has one list for each mixture, in the order of the model's
/// tensors.
///
///     {0, 2, 5}              keep three experts: pruning
///     {0, 1, 2, 3, 0, 1}     add copies of two experts
///     {3, 1, 2, 0}           reorder
class ExpertLists {
 public:
  ExpertLists(std::initializer_list<Index> of_all) : lists_{std::vector<Index>(of_all)} {}
  ExpertLists(std::vector<Index> of_all) : lists_{std::move(of_all)} {}
  ExpertLists(std::vector<std::vector<Index>> of_each) : lists_(std::move(of_each)) {}
  Index size() const { return static_cast<Index>(lists_.size()); }
  const std::vector<Index>& of(Index mixture) const { return lists_[static_cast<std::size_t>(mixture % size())]; }

 private:
  std::vector<std::vector<Index>> lists_;
};

namespace detail_::select {

template <class C>
class Selection;

}  // namespace detail_::select

template <class C, class P>
P select_experts(C& ctx, const P& pack, const ExpertLists& list) {
  const auto here = ctx.here();
  P to{};
  detail_::select::Selection<C> selection(ctx, list);
  selection.part(Name{}, to, pack);
  selection.expect_mixtures();
  optim::copy_counters(pack, to);
  return to;
}

/// Copies selected experts from a run to another run, whose model can have a different number of experts. Copies
/// parameters, optimizer state with its count of steps, and the count of skipped steps.
///
///     Trainer small{ctx, model(3), loss, optimizer, Seed{1}};
///     select_experts(trainer, {0, 2, 5}, small);                        // small continues from the state of trainer
///
/// The run `to` keeps its own seed and therefore its own noise.
/// @throws ArgumentError under the same conditions as select_experts of a pack, and if a tensor of `to` does not have
///         the shape of the selected tensor; `to` is unchanged then
/// @cost   temporary memory for a copy of parameters and state
template <class R>
void select_experts(const R& from, const ExpertLists& list, R& to) {
  auto& ctx = to.context();
  const auto here = ctx.here();
  const auto params = select_experts(ctx, from.params, list);
  const auto state = select_experts(ctx, from.state, list);
  expect_like("select_experts", "to.params", params, to.params);
  expect_like("select_experts", "to.state", state, to.state);
  copy_pack(ctx, params, to.params);
  copy_pack(ctx, state, to.state);
  optim::copy_counters(from.state, to.state);
  to.skipped = from.skipped;
  to.forget();
}

namespace functor {

/// Copies the selected experts of a tensor [outer, experts, inner]: to[o, i, j] = from[o, list[i], j].
template <class T>
struct SelectExperts {
  const T* from;
  const Index* list;
  // `before` and `after` are the numbers of experts in `from` and in `to`, and `inner` is the number of elements of one
  // expert.
  Index before, after, inner;
  T* to;
  GATEFOLD_HD void operator()(Index at) const {
    const Index j = at % inner, i = at / inner % after, o = at / inner / after;
    to[at] = from[(o * before + list[i]) * inner + j];
  }
};

}  // namespace functor

namespace detail_::select {

/// True for the type of the parameters of a Mixture.
template <class P>
concept OfMixture = requires(P& p) {
  typename P::Gate;
  p.gate;
  p.expert;
};
/// True for the type of the parameters of a MultiGate, which has one gate for each task.
template <class P>
concept OfTasks = requires(P& p) {
  typename P::TaskGate;
  p.gate;
  p.expert;
};
/// True for the type of the parameters of a HierarchicalGate, which has one gate for each group of experts.
template <class P>
concept OfGroups = requires {
  typename P::GateOfGroups;
};
/// True for the type of the parameters of `Experts` (experts of several kinds), which have one pack for each kind.
template <class P>
concept OfKinds = requires(P& p) {
  requires detail_::pack::is_tuple<std::remove_cvref_t<decltype(p.kinds)>>;
};
/// True if a pack of parameters declares (in `expert_extents`) which dimensions of its tensors have one entry per
/// expert.
template <class P>
inline constexpr bool says_extents = requires {
  P::expert_extents[0];
};
/// Returns the type of the pack that declares which dimensions of the tensors of P have one entry per expert. This is P
/// itself, or the type of its member `scores` if P lists the tensors of its scores as its own (Jitter, Fixed).
template <class P>
auto extents_of(const P& p) {
  if constexpr (!says_extents<P> && requires { p.scores; }) {
    return extents_of(p.scores);
  } else {
    return std::type_identity<P>{};
  }
}
template <class P>
using ExtentsOf = typename decltype(extents_of(std::declval<const P&>()))::type;
template <class>
inline constexpr bool is_nothing = false;
template <class T, class B>
inline constexpr bool is_nothing<Nothing<T, B>> = true;

template <class C>
class Selection {
  using B = typename C::Backend;

 public:
  Selection(C& ctx, const ExpertLists& lists) : ctx_(ctx), lists_(lists) {
    expect(lists.size() >= 1, where, "list", "at least one list", lists.size());
  }

  /// Copies any part of a model or of an optimizer's state. In mixtures, copies only the selected experts.
  template <class P>
  void part(const Name& at, P& to, const P& from) {
    if constexpr (detail_::pack::is_tensor<P>) {
      to.resize_like(from);
      copy(ctx_, from.view(), to.view());
    } else if constexpr (detail_::pack::is_sharded<P>) {
      GATEFOLD_REQUIRE(!detail_::pack::is_sharded<P>,
                       "gatefold: select_experts works in one process, on a model that holds all its experts; save a "
                       "model on shards and load it into a model without shards first (docs/how-to/distributed.md)");
    } else if constexpr (OfMixture<P>) {
      const std::vector<Index>& list = list_of_mixture();
      whole_gate(Name{&at, "gate"}, to.gate, from.gate, list);
      bank(Name{&at, "expert"}, to.expert, from.expert, list);
    } else if constexpr (OfTasks<P>) {
      const std::vector<Index>& list = list_of_mixture();
      const Name gates{&at, "gate"};
      to.gate.resize(from.gate.size());
      for (std::size_t t = 0; t < from.gate.size(); ++t)
        whole_gate(Name{&gates, static_cast<Index>(t)}, to.gate[t], from.gate[t], list);
      bank(Name{&at, "expert"}, to.expert, from.expert, list);
    } else {
      if constexpr (detail_::pack::is_vector<P>) to.resize(from.size());
      if constexpr (requires { to.lie_as(from); }) to.lie_as(from);
      detail_::pack::each_part([&](auto name, auto& a, const auto& b) { part(Name{&at, name}, a, b); }, to, from);
    }
  }
  /// Requires that the pack has a mixture, and that the number of lists divides the number of mixtures. The state of an
  /// optimizer can contain each mixture of the model several times, for example once for each moment.
  /// @throws ArgumentError if the pack has no mixture, or if the number of lists is not a divisor
  void expect_mixtures() const {
    expect(mixtures_ > 0, where, "pack", "parameters or a state of a model with a Mixture", "no Mixture");
    expect(mixtures_ % lists_.size() == 0, where, "list", Joined{"1 list, or ", mixtures_, " (one for each mixture)"},
           lists_.size());
  }

 private:
  static constexpr const char* where = "select_experts";

  /// Counts a mixture, and returns its list of selected experts.
  const std::vector<Index>& list_of_mixture() {
    const std::vector<Index>& list = lists_.of(mixtures_++);
    expect(!list.empty(), where, "list", "at least one expert", "none");
    return list;
  }
  template <class P>
  void whole_gate(const Name& at, P& to, const P& from, const std::vector<Index>& list) {
    GATEFOLD_REQUIRE(!OfGroups<P>,
                     "gatefold: select_experts: the groups of a HierarchicalGate must keep the same number of experts, "
                     "so its experts cannot be selected one by one: train a new gate");
    GATEFOLD_REQUIRE(!is_nothing<P>,
                     "gatefold: select_experts: this gate (for example a HashGate) has no tensors, and its choices "
                     "depend on the number of experts, so it would send items to other experts than before: train a "
                     "new gate");
    if constexpr (!is_nothing<P> && !OfGroups<P>) {
      selected_ = 0;
      gate(at, to, from, list);
      expect(selected_ > 0, where, at, "at least one tensor with an extent of experts", "none");
    }
  }
  /// Copies the entries for the selected experts in the tensors of a gate. The packs of the gate declare which
  /// dimensions of their tensors have one entry per expert.
  template <class P>
  void gate(const Name& at, P& to, const P& from, const std::vector<Index>& list) {
    using Says = ExtentsOf<P>;
    if constexpr (requires { to.lie_as(from); }) to.lie_as(from);
    std::size_t number = 0;
    P::each(
        [&](std::string_view name, auto& a, auto& b) {
          const Name child{&at, name};
          using A = std::remove_cvref_t<decltype(a)>;
          if constexpr (detail_::pack::is_tensor<A>) {
            GATEFOLD_REQUIRE((says_extents<Says> || !detail_::pack::is_tensor<A>),
                             "gatefold: select_experts: the Params of this gate must declare which extents of their "
                             "tensors count experts: static constexpr int expert_extents[] = {1, 0}; in the order of "
                             "each, -1 for a tensor without such an extent; see docs/reference/optional_members.md");
            if constexpr (says_extents<Says>) {
              expect(number < std::size(Says::expert_extents), where, Joined{at, ".expert_extents"},
                     "one number for each tensor of the gate", Joined{std::size(Says::expert_extents), " numbers"});
              const int extent = Says::expert_extents[number++];
              if (extent >= 0) ++selected_;
              tensor(child, a, std::as_const(b), extent, list);
            }
          } else {
            gate(child, a, std::as_const(b), list);
          }
        },
        to, from);
  }
  /// Copies the parameters of the selected experts. The first extent of each of their tensors is the number of experts.
  template <class P>
  void bank(const Name& at, P& to, const P& from, const std::vector<Index>& list) {
    if constexpr (detail_::pack::is_tensor<P>) {
      tensor(at, to, from, 0, list);
    } else if constexpr (OfKinds<P>) {
      kinds(Name{&at, "kinds"}, to.kinds, from.kinds, list);
    } else if constexpr (detail_::pack::is_sharded<P>) {
      part(at, to, from);  // triggers a static_assert, because shards are not supported
    } else {
      detail_::pack::each_part([&](auto name, auto& a, const auto& b) { bank(Name{&at, name}, a, b, list); }, to, from);
    }
  }
  /// Copies the parameters of the selected experts of a mixture with several kinds of experts. Experts are numbered
  /// consecutively, kind by kind. The list of selected experts must be sorted by kind.
  template <class... K>
  void kinds(const Name& at, std::tuple<K...>& to, const std::tuple<K...>& from, const std::vector<Index>& list) {
    Index first = 0;
    std::size_t next = 0;
    const auto one = [&](auto kind, auto& a, const auto& b) {
      Index count = 0;
      for_each_tensor([&](const Name&, const auto& t) { count = std::max(count, t.extent(0)); }, b);
      std::vector<Index> mine;
      for (; next < list.size() && first <= list[next] && list[next] < first + count; ++next)
        mine.push_back(list[next] - first);
      bank(Name{&at, kind}, a, b, mine);
      first += count;
    };
    detail_::pack::each_part(one, to, from);
    expect(next == list.size(), where, "list", Joined{"experts below ", first, ", sorted by kind"},
           next < list.size() ? list[next] : Index(0));
  }
  /// Copies the entries of the selected experts in dimension `extent` of a tensor, or the whole tensor if `extent` is
  /// −1. A tensor without values stays empty, for example the moments of a tensor that is not trained.
  template <class T, int Rank>
  void tensor(const Name& at, Tensor<T, Rank, B>& to, const Tensor<T, Rank, B>& from, int extent,
              const std::vector<Index>& list) {
    if (extent < 0) return part(at, to, from);
    if (extent < Rank) {
      if (from.extent(extent) == 0) return part(at, to, from);
      const Index experts = from.extent(extent), count = static_cast<Index>(list.size());
      for (const Index e : list)
        expect(0 <= e && e < experts, where, "list", Joined{"experts of ", at, ", 0 to ", experts - 1}, e);
      std::array<Index, static_cast<std::size_t>(Rank)> extents;
      for (int d = 0; d < Rank; ++d) extents[static_cast<std::size_t>(d)] = d == extent ? count : from.extent(d);
      std::apply([&](auto... n) { to.resize(n...); }, extents);
      Index inner = 1;
      for (int d = extent + 1; d < Rank; ++d) inner *= from.extent(d);
      auto mark = ctx_.mark();
      auto places = ctx_.template scratch<Index>(count);
      B::from_host(ctx_, count, list.data(), places.data());
      B::for_each(ctx_, to.size(),
                  functor::SelectExperts<T>{from.data(), places.data(), experts, count, inner, to.data()});
      return;
    }
    expect(false, where, Joined{at, ": expert_extents"}, Joined{"less than ", Rank, " (the rank of the tensor)"},
           extent);
  }

  C& ctx_;
  const ExpertLists& lists_;
  Index mixtures_ = 0, selected_ = 0;
};

}  // namespace detail_::select

}  // namespace gatefold
