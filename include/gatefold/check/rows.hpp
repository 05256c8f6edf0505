#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/backend/random_fill.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Checks that two implementations of a gate's mixing or selection give the same results: `forward`, which processes a
/// batch, and `rows`, which processes one item at a time.
namespace gatefold::check {

namespace steps {

/// True for a gate whose mixing and selection both have `rows`, the implementation for one item at a time. Such a gate
/// does not call their `forward`. Also requires that no part of the gate needs extra inputs.
template <class G, class T, class B>
concept RoutesByRows = requires(const G& gate) {
  gate.scores;
  requires detail_::policy::RowByRow<std::remove_cvref_t<decltype(gate.mixing)>,
                                     std::remove_cvref_t<decltype(gate.selection)>, T, B>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.scores)>, T, B>, Nothing<T, B>>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.mixing)>, T, B>, Nothing<T, B>>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.selection)>, T, B>, Nothing<T, B>>;
};

/// Returns a sorted list of the gate's picks that are not dropped, as (expert, item, weight).
template <class T, class B>
std::vector<std::tuple<Index, Index, T>> picks_of(const SparsePlan<T, B>& plan) {
  std::vector<std::tuple<Index, Index, T>> picks;
  for (Index e = 0; e < plan.experts(); ++e)
    for (Index s = plan.offsets(e); s < plan.offsets(e + 1); ++s)
      picks.emplace_back(e, plan.rows(s), plan.weight(plan.pick(s)));
  std::sort(picks.begin(), picks.end());
  return picks;
}

}  // namespace steps

/// Compares the two implementations `forward` (a batch) and `rows` (one item) of the mixing and the selection of each
/// gate in a layer. Returns a sentence for each difference. Other checks do not cover `forward`, because a gate only
/// calls it if its mixing or its selection has no `rows`.
///
/// @tparam B  a host backend
/// @param at  the name of `part` in the sentences; empty for the outermost part
template <class B, class P>
std::vector<std::string> rows_unlike_forward(const P& part, Seed seed, Index items, const std::string& at = "") {
  using T = float;
  std::vector<std::string> sentences;
  const auto within = [&](const char* member) { return at.empty() ? std::string(member) : at + "." + member; };
  if constexpr (requires { part.filled_gate(); }) {
    const auto gate = part.filled_gate();
    using G = std::remove_const_t<decltype(gate)>;
    if constexpr (steps::RoutesByRows<G, T, B>) {
      typename B::Context ctx(1);
      const auto p = gate.template init<T, B>(ctx, seed);
      const auto x = uniform_tensor<T>(ctx, seed.fork(1), 1, items, part.in_dim());
      SparsePlan<T, B> by_rows, plan;
      Saved<G, T, B> saved;
      gate.forward(ctx, p, x, by_rows, saved);
      const View<const T, 2, B> z = saved.logits, q = saved.probabilities;
      Tensor<T, 2, B> mixed(items, count_experts(gate));
      gate.mixing.forward(ctx, p.mixing, x, z, mixed.view(), saved.mixing, Nothing<T, B>{});
      bool same = true;
      for (Index i = 0; i < q.size(); ++i) same = same && mixed.data()[i] == q.data()[i];
      if (!same) sentences.push_back(within("gate.mixing") + ": forward and rows give different bits");
      const auto selection = with_experts(gate.selection, count_experts(gate));
      selection.forward(ctx, p.selection, Candidates<T, B>{x, z, q}, plan, saved.selection, Nothing<T, B>{});
      if (steps::picks_of(plan) != steps::picks_of(by_rows))
        sentences.push_back(within("gate.selection") + ": forward and rows give different picks or weights");
    }
  } else if constexpr (requires { std::tuple_size<decltype(part.layers)>::value; }) {
    const auto look = [&](const auto& layer, int i) {
      const auto found = rows_unlike_forward<B>(layer, seed, items, within(("layers." + std::to_string(i)).c_str()));
      sentences.insert(sentences.end(), found.begin(), found.end());
    };
    std::apply(
        [&](const auto&... layer) {
          int i = 0;
          (look(layer, i++), ...);
        },
        part.layers);
  } else if constexpr (requires { part.branch; }) {
    return rows_unlike_forward<B>(part.branch, seed, items, within("branch"));
  } else if constexpr (requires { part.layer; }) {
    return rows_unlike_forward<B>(part.layer, seed, items, within("layer"));
  }
  return sentences;
}

}  // namespace gatefold::check
