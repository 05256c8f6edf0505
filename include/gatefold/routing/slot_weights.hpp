#pragma once

#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// The weights w of slots in the output Σ w[s] z[s] of an item, and memory for their gradients. z[s] is the output of
/// an expert for slot s. The arrays are in the order of the picks: a pick is one choice of the gate, and slots are the
/// picks sorted by expert.
template <class T, class B>
struct SlotWeights {
  View<const T, 1, B> weight{};    // [picks] in
  View<T, 1, B> dweight{};         // [picks] out
  View<const Index, 1, B> pick{};  // [S] pick of each slot; empty: slot s is pick s

  GATEFOLD_HD T operator()(Index s) const { return weight(of(s)); }
  GATEFOLD_HD void set_adjoint(Index s, T v) const { dweight(of(s)) = v; }

 private:
  GATEFOLD_HD Index of(Index s) const { return pick.data() ? pick(s) : s; }
};

}  // namespace gatefold
