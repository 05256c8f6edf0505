#pragma once

#include "gatefold/backend/elementwise.hpp"

/// Parts of a gate (router) that return values which the shards of the items have already computed, for example logits.
/// In backward, the gradients of the items are the gradients of these values.
namespace gatefold::dist {

/// A scores policy (the part of a gate that computes logits) for items that are already rows of logits. It returns
/// these rows.
///
///     z = x                                                                                             (1)
struct GivenScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    copy(ctx, x, z);
  }
  /// Adds dz to dx, because the logits z are the items x.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    add(ctx, dz, dx);
  }
};

/// Like GivenScores, for a gate whose scores have the function forward_rows, which routes each row inside the matrix
/// product of the logits. On a device, several lanes (threads) then compute a row together, as in a run of one process,
/// so that sums over the row have the same order. Here, forward_rows is a product with inner dimension 0, whose
/// epilogue loads the given logits.
struct GivenRows : GivenScores {
  /// The epilogue of this product: returns element [n, e] of the given logits z.
  template <class T, class B>
  struct Given {
    View<const T, 2, B> z;
    template <class A>
    GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index n, Index e, typename A::Value) const {
      return at.load(z.data() + n * z.extent(1) + e);
    }
  };
  template <class T, class B, class F>
  void forward_rows(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z,
                    const F& rows) const {
    const View<const T, 2, B> a(nullptr, x.extent(0), 0), b(nullptr, 0, x.extent(1));
    B::gemm_rows(ctx, a, b, false, z, Given<T, B>{x}, rows);
  }
};

/// The layout of one row that a mixing has computed for an item on the item's shard: logits z, ranks, and probabilities
/// q, with E numbers each (one per expert).
///
///     x[n,:] = [z[n,:], rank[n,:], q[n,:]]                                                              (2)
template <class T, class B>
struct MixedRows {
  enum Part { logits, rank, probabilities, parts };

  /// Writes the matrix `from` [N, E] to one part of `rows` (logits, ranks or probabilities), or adds it to this part. A
  /// call handles element i = n E + e.
  struct Put {
    View<const T, 2, B> from;
    Index first;
    bool adds;
    View<T, 2, B> rows;
    GATEFOLD_HD void operator()(Index i) const {
      T& to = rows(i / from.extent(1), first + i % from.extent(1));
      to = adds ? to + from.data()[i] : from.data()[i];
    }
  };
  /// Reads one part of `rows` (logits, ranks or probabilities) into the matrix `to` [N, E]. A call handles element i =
  /// n E + e.
  struct Take {
    View<const T, 2, B> rows;
    Index first;
    View<T, 2, B> to;
    GATEFOLD_HD void operator()(Index i) const { to.data()[i] = rows(i / to.extent(1), first + i % to.extent(1)); }
  };

  /// Writes the matrix `from` to one part of `rows`, or adds it to this part if `adds` is true.
  static void put(typename B::Context& ctx, View<const T, 2, B> from, Part part, View<T, 2, B> rows, bool adds) {
    B::for_each(ctx, from.size(), Put{from, part * from.extent(1), adds, rows});
  }
  static void take(typename B::Context& ctx, View<const T, 2, B> rows, Part part, View<T, 2, B> to) {
    B::for_each(ctx, to.size(), Take{rows, part * to.extent(1), to});
  }
};

/// A scores policy (the part of a gate that computes logits) that reads the logits from rows with the layout MixedRows.
struct MixedScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    using Rows = MixedRows<T, B>;
    Rows::take(ctx, x, Rows::logits, z);
  }
  /// Adds dz, the gradient of the logits, to the logits in the rows of dx, which have the layout MixedRows.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    using Rows = MixedRows<T, B>;
    Rows::put(ctx, dz, Rows::logits, dx, true);
  }
};
/// A mixing (the part of a gate that computes ranks and probabilities) that reads both from rows with the layout
/// MixedRows. Padding gets the same probability for every expert, because the gate has set the rows of padding to 0.
struct GivenMixing {
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> rank;  // [N, E]
  };
  template <class T, class B>
  struct Extra {
    View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; if empty, no item is padding
    Extra with_valid(View<const T, 1, B> mask) const { return {mask}; }
  };
  /// Sets the probability q[n,e] to 1/E if item n is padding, for E experts. A call handles element i = n E + e.
  template <class T, class B>
  struct SpreadPadding {
    View<const T, 1, B> valid;
    View<T, 2, B> q;
    GATEFOLD_HD void operator()(Index i) const {
      const Index experts = q.extent(1);
      if (valid(i / experts) == 0) q.data()[i] = T(1) / static_cast<T>(experts);
    }
  };

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    using Rows = MixedRows<T, B>;
    saved.rank.resize(z.extent(0), z.extent(1));
    Rows::take(ctx, x, Rows::rank, saved.rank);
    Rows::take(ctx, x, Rows::probabilities, q);
    if (!extra.valid.empty()) B::for_each(ctx, q.size(), SpreadPadding<T, B>{extra.valid, q});
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& saved) const {
    return saved.rank;
  }
  /// Sets dz, the gradient of the logits, to 0. Adds `drank` and `dq` to the ranks and probabilities in the rows of dx,
  /// which have the layout MixedRows.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B>, In<T, 2, B>,
                const Saved<T, B>&, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx, Nothing<T, B>&,
                const Extra<T, B>&, Nothing<T, B>&) const {
    using Rows = MixedRows<T, B>;
    fill(ctx, dz, 0);
    Rows::put(ctx, drank, Rows::rank, dx, true);
    Rows::put(ctx, dq, Rows::probabilities, dx, true);
  }
};

}  // namespace gatefold::dist
