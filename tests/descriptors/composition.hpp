#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "descriptors/auxiliary.hpp"
#include "descriptors/expert.hpp"
#include "descriptors/gate.hpp"
#include "descriptors/layer.hpp"
#include "descriptors/mixing.hpp"
#include "descriptors/rule.hpp"
#include "descriptors/scores.hpp"
#include "descriptors/selection.hpp"

namespace gatefold::rows {

template <class ScoresT, class MixingT, class SelectionT, class... AuxiliaryT>
ComposedGate<ScoresT, MixingT, SelectionT, AuxiliaryT...> composed(const ScoresT& scores, const MixingT& mixing,
                                                                   const SelectionT& selection,
                                                                   const AuxiliaryT&... auxiliary) {
  return {scores, mixing, selection, {auxiliary...}};
}

/// One row of each family, or `absent`. A row for a whole gate takes the place of the selection.
template <class ScoresR, class MixingR, class SelectionR, class AuxiliaryR, class LayerR, class RuleR, class ExpertR>
struct Composition {
  ScoresR scores;
  MixingR mixing;
  SelectionR selection;
  AuxiliaryR auxiliary;
  LayerR layer;
  RuleR rule;
  ExpertR expert;

  auto gate(const Size& s) const {
    if constexpr (std::is_same_v<decltype(scores.make(s)), Absent>) {
      const auto whole = selection.make(s);
      return count_experts(whole) > 0 ? whole : with_experts(whole, s.experts);
    } else if constexpr (std::is_same_v<decltype(auxiliary.make(s)), Absent>) {
      return with_experts(composed(scores.make(s), mixing.make(s), selection.make(s)), s.experts);
    } else {
      return with_experts(composed(scores.make(s), mixing.make(s), selection.make(s), auxiliary.make(s)), s.experts);
    }
  }
  auto make(const Size& s) const { return layer.make(s, rule.make(s), Mixture{gate(s), expert.make(s)}); }

  /// Returns the largest value of one fact among all rows.
  template <class F>
  F most(F Facts::*fact) const {
    const F all[] = {scores.facts.*fact, mixing.facts.*fact, selection.facts.*fact, auxiliary.facts.*fact,
                     layer.facts.*fact,  rule.facts.*fact,   expert.facts.*fact};
    return *std::max_element(std::begin(all), std::end(all));
  }
  /// Returns the names (or their ends) of the gradients that are zero by design.
  std::vector<std::string> zeros() const {
    std::vector<std::string> all;
    const auto add = [&](const Facts& of) {
      if (*of.zero) all.push_back(of.zero);
    };
    add(scores.facts), add(mixing.facts), add(selection.facts), add(auxiliary.facts);
    add(layer.facts), add(rule.facts), add(expert.facts);
    return all;
  }
};
template <class S, class M, class P, class A, class L, class R, class E>
Composition(S, M, P, A, L, R, E) -> Composition<S, M, P, A, L, R, E>;

}  // namespace gatefold::rows
