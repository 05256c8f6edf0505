#pragma once

#include "gatefold/backend/lanes.hpp"

/// Functors that run the mixing and the selection of a gate for one item, in one pass over its row of logits. They
/// combine the functors that the functions `rows` of the mixing and of the selection return.
namespace gatefold::functor {

/// Runs the mixing and the selection of a gate for item n. The experts are chosen from the ranks before the mixing
/// writes the probabilities, so that both can be in the same memory.
template <class MixT, class PickT>
struct RouteRow {
  MixT mix;
  PickT pick;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    pick.choose(lanes, n);
    mix(lanes, n);
    pick.weigh(lanes, n);
  }
};
template <class M, class P>
RouteRow(M, P) -> RouteRow<M, P>;
/// Runs the mixing and the selection of a gate for item n like RouteRow, but reads the logits from a row at any
/// address. If q has no memory, the probabilities overwrite the logits in this row.
template <class MixT, class PickT, class T, class B>
struct RouteRowAnywhere {
  MixT mix;
  PickT pick;
  View<T, 2, B> q;

  GATEFOLD_HD void operator()(const auto& lanes, Index n, T* z_row) const {
    T* const q_row = q.data() ? q.data() + n * q.extent(1) : z_row;
    pick.choose(lanes, n, z_row);
    mix.row(lanes, n, z_row, q_row);
    pick.weigh(lanes, n, q_row);
  }
};
template <class M, class P, class T, class B>
RouteRowAnywhere(M, P, View<T, 2, B>) -> RouteRowAnywhere<M, P, T, B>;
/// Runs backward of the selection and then of the mixing for item n. `pick` is backward of the selection, which adds to
/// dq[n,:], the gradient of the probabilities. If `accumulate` is false, dq[n,:] is set to 0 first.
template <class MixT, class PickT, class T, class B>
struct RouteRowBackward {
  MixT mix;
  PickT pick;
  View<T, 2, B> dq;
  bool accumulate;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (!accumulate) zero_columns(lanes, &dq(n, 0), dq.extent(1));
    pick(lanes, n);
    mix(lanes, n);
  }
};
template <class M, class P, class T, class B>
RouteRowBackward(M, P, View<T, 2, B>, bool) -> RouteRowBackward<M, P, T, B>;

/// Marks pick p of a plan as dropped if its item is padding.
template <class T, class B>
struct DropPadding {
  View<const T, 1, B> valid;
  View<const Index, 1, B> item;
  View<Index, 1, B> expert;
  GATEFOLD_HD void operator()(Index p) const {
    if (valid(item(p)) == 0 && expert(p) >= 0) expert(p) = ~expert(p);
  }
};

}  // namespace gatefold::functor
