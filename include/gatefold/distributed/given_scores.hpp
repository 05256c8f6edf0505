#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/tensor/view.hpp"

/// Scores and a mixing that return given values, which were computed on the shards of the items. The gradients of the
/// items are the gradients of these values.
namespace gatefold::dist {

/// Scores that return the items, because each item is already a row of logits.
///
///     z = x                                                                                             (1)
struct GivenScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    copy(ctx, x, z);
  }
  /// Adds dz to dx, because z = x.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    add(ctx, dz, dx);
  }
};

/// GivenScores for a gate whose scores have forward_rows in one process. The lanes of a device then share a row as they
/// do in one process, so sums over the row have the same order. forward_rows is a product of depth 0 whose epilogue
/// loads the logits.
struct GivenRows : GivenScores {
  /// The epilogue: element [n, e] of z.
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

/// The layout of the values of a mixed item: logits z, ranks, and probabilities q, with E numbers each.
///
///     x[n,:] = [z[n,:], rank[n,:], q[n,:]]                                                              (2)
template <class T, class B>
struct MixedRows {
  enum Part { logits, rank, probabilities, parts };

  /// Writes element i = n E + e of `from` to one part of `rows`, or adds it to this part.
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
  /// Reads element i = n E + e of `to` from one part of `rows`.
  struct Take {
    View<const T, 2, B> rows;
    Index first;
    View<T, 2, B> to;
    GATEFOLD_HD void operator()(Index i) const { to.data()[i] = rows(i / to.extent(1), first + i % to.extent(1)); }
  };

  /// Writes `from` to a part of `rows`, or adds it if `adds` is true.
  static void put(typename B::Context& ctx, View<const T, 2, B> from, Part part, View<T, 2, B> rows, bool adds) {
    B::for_each(ctx, from.size(), Put{from, part * from.extent(1), adds, rows});
  }
  static void take(typename B::Context& ctx, View<const T, 2, B> rows, Part part, View<T, 2, B> to) {
    B::for_each(ctx, to.size(), Take{rows, part * to.extent(1), to});
  }
};

/// Scores that return the logits of items that have layout (2).
struct MixedScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    using Rows = MixedRows<T, B>;
    Rows::take(ctx, x, Rows::logits, z);
  }
  /// In each row of dx, which has layout (2), adds dz to the part of the logits.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    using Rows = MixedRows<T, B>;
    Rows::put(ctx, dz, Rows::logits, dx, true);
  }
};
/// A mixing that returns the ranks and probabilities of items that have layout (2). Padding gets the same probability
/// for every expert, because a gate sets the items of padding to 0.
struct GivenMixing {
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> rank;  // [N, E]
  };
  template <class T, class B>
  struct Extra {
    View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; empty: all are items
    Extra with_valid(View<const T, 1, B> mask) const { return {mask}; }
  };
  /// Sets q[n,e], element i = n E + e of q, to 1/E if item n is padding.
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
  /// Sets dz to 0. In each row of dx, which has layout (2), adds `drank` to the part of the ranks and `dq` to the part
  /// of the probabilities.
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
