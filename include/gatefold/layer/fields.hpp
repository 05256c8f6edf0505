#pragma once

#include <initializer_list>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/tensor/table.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), FieldIds, TakeField);
namespace functor {

template <class T>
GATEFOLD_HD Index field_id(T stored, Index count);

}  // namespace functor

/// The number of ids of each field of a Fields layer. You can pass `{1000, 50, 7}` or a std::vector. Copies share the
/// numbers, so that a copy allocates no memory.
class Vocabularies {
 public:
  Vocabularies() = default;
  Vocabularies(std::initializer_list<Index> sizes) : Vocabularies(std::vector<Index>(sizes)) {}
  Vocabularies(std::vector<Index> sizes) : sizes_(std::make_shared<const std::vector<Index>>(std::move(sizes))) {}
  Index size() const { return sizes_ ? static_cast<Index>(sizes_->size()) : 0; }
  Index operator[](Index field) const { return (*sizes_)[static_cast<std::size_t>(field)]; }

 private:
  std::shared_ptr<const std::vector<Index>> sizes_;
};

/// Reads rows of a table with F id fields and C numeric columns, for example user, item and weekday, and a price. Each
/// field has its own learned table W_f [V_f, dim]. Fields is the first layer of a recommender or of a model for tabular
/// data: `Fields{.vocabularies = {1000, 50, 7}, .dim = 16, .numeric = 5}`.
///
///     u[n] = (W_0[x[n,0]], …, W_{F−1}[x[n,F−1]], x[n,F], …, x[n,F+C−1])                                  (1)
///
/// The first F columns of x are ids, stored as whole numbers of type T. All rows of a batch have the same fields; use a
/// separate id for missing values. Numeric columns are copied unchanged, so scale them to about ±1 before.
///
/// Source: Guo and Berkhahn 2016, "Entity Embeddings of Categorical Variables", arXiv:1604.06737.
/// @param x [N, F + C] in, u [N, F · dim + C] out; the gradient of the id columns is 0
/// @param vocabularies  V_f, the number of ids of each field; ids of field f are in [0, V_f)
/// @param dim      values per id
/// @param numeric  C, the number of numeric columns
/// @param sparse   if true, a training step accesses only the rows of W_f whose gradient is not 0, as in Embedding
/// @param initial  initial values of W_f; the fan-in is V_f
/// @throws ArgumentError if a shape or an option is invalid, V_f is less than 1 or more than 2^24 for float (2^53 for
///         double), or (on a host) an id is not a whole number in [0, V_f). On a device, an id outside this range gives
///         NaN, and the fractional part of an id is ignored
/// @cost   forward copies N·(F·dim + C) values; backward makes N·F·dim additions and F counting sorts, each O(N + V_f)
/// @order  the gradients of an id are summed in the order of the items; bitwise equal for every thread count
struct Fields {
  Vocabularies vocabularies{};
  Index dim = 0, numeric = 0;
  bool sparse = true;
  Initial initial = Initial::normal(1);

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    std::vector<Table<T, B>> weight;  // [V_f, dim], one table per field
    GATEFOLD_PACK(weight)
  };

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return vocabularies.size() + numeric; }
  Index out_dim() const { return vocabularies.size() * dim + numeric; }

  /// Returns rows [N, F + C] from ids [N, F] and numbers [N, C] in host memory:
  /// `fields.rows<float, Cpu>(ids, numbers)`. If F is 0, pass `{}` for `ids`; if C is 0, pass `{}` for `numbers`.
  /// @throws ArgumentError if a shape is wrong or an id of field f is not in [0, V_f)
  template <class T, class B>
  Tensor<T, 2, B> rows(In<Index, 2, B> ids, In<T, 2, B> numbers) const {
    static_assert(B::is_host);
    const Index fields = vocabularies.size(), items = fields > 0 ? ids.extent(0) : numbers.extent(0);
    if (fields > 0) expect_shape("Fields.rows", "ids", ids, {items, fields});
    if (numeric > 0) expect_shape("Fields.rows", "numbers", numbers, {items, numeric});
    Tensor<T, 2, B> x(items, in_dim());
    for (Index n = 0; n < items; ++n) {
      for (Index f = 0; f < fields; ++f) {
        expect(0 <= ids(n, f) && ids(n, f) < vocabularies[f], "Fields.rows", Joined{"ids[", n, ", ", f, "]"},
               Joined{"an id from 0 to ", vocabularies[f] - 1}, ids(n, f));
        x(n, f) = static_cast<T>(ids(n, f));
      }
      for (Index c = 0; c < numeric; ++c) x(n, fields + c) = numbers(n, c);
    }
    return x;
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options<T>("Fields.init");
    Params<T, B> p;
    for (Index f = 0; f < vocabularies.size(); ++f)
      p.weight.emplace_back(
          initial_weights<T>(ctx, initial, seed.fork(static_cast<std::uint64_t>(f)), vocabularies[f], dim));
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Nothing<T, B>&) const {
    expect_options<T>("Fields");
    expect(static_cast<Index>(p.weight.size()) == vocabularies.size(), "Fields", "params.weight.size()",
           Joined{vocabularies.size(), " (the number of vocabularies)"}, p.weight.size());
    for (Index f = 0; f < vocabularies.size(); ++f)
      expect_shape("Fields", "params.weight", table(p, f), {vocabularies[f], dim});
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    const auto here = ctx.here();
    expect_forward("Fields.forward", *this, p, x, "u", u, extra);
    expect_ids("Fields.forward", x);
    const Index fields = vocabularies.size();
    for (Index f = 0; f < fields; ++f)
      B::for_rows(ctx, x.extent(0), functor::TakeField<T, B>{x, f, table(p, f), f * dim, u});
    if (numeric > 0) copy_columns(ctx, numeric, x, fields, u, fields * dim);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    const auto here = ctx.here();
    expect_backward("Fields.backward", *this, p, x, du, dx, grads, extra);
    expect_ids("Fields.backward", x);
    const Index items = x.extent(0), fields = vocabularies.size();
    for (Index f = 0; f < fields; ++f) {
      auto& grad = grads.weight[static_cast<std::size_t>(f)];
      if (grad.is_skipped()) continue;
      if (!sparse) grad.touch_all();
      auto mark = ctx.mark();
      auto ids = ctx.template scratch<Index>(items), order = ctx.template scratch<Index>(items),
           offsets = ctx.template scratch<Index>(vocabularies[f] + 1);
      B::for_each(ctx, items, functor::FieldIds<T, B>{x, f, vocabularies[f], ids});
      B::group_by(ctx, ids, offsets, order);
      B::for_rows(ctx, items, functor::AddById<T, B>{ids, offsets, order, du, grad.rows(), f * dim});
    }
    if (numeric > 0) add_columns(ctx, numeric, du, fields * dim, dx, fields);
  }

 private:
  static const auto& table(const auto& p, Index field) { return p.weight[static_cast<std::size_t>(field)]; }
  template <class T>
  void expect_options(const char* where) const {
    constexpr Index largest = Index(1) << std::numeric_limits<T>::digits;
    expect(numeric >= 0, where, "numeric", "at least 0", numeric);
    expect(in_dim() >= 1, where, "vocabularies", "at least one field or numeric column", "none");
    expect(vocabularies.size() == 0 || dim >= 1, where, "dim", "at least 1", dim);
    for (Index f = 0; f < vocabularies.size(); ++f)
      expect(1 <= vocabularies[f] && vocabularies[f] <= largest, where, Joined{"vocabularies[", f, "]"},
             Joined{"1 to ", largest, " (ids are stored in the element type)"}, vocabularies[f]);
  }
  /// Requires that each id of field f is a whole number in [0, V_f). Ids on a device are not checked.
  template <class T, class B>
  void expect_ids(const char* where, View<const T, 2, B> x) const {
    if constexpr (B::is_host)
      for (Index n = 0; n < x.extent(0); ++n)
        for (Index f = 0; f < vocabularies.size(); ++f) {
          const Index id = functor::field_id(x(n, f), vocabularies[f]);
          expect(id >= 0 && static_cast<T>(id) == x(n, f), where, Joined{"x[", n, ", ", f, "]"},
                 Joined{"an id from 0 to ", vocabularies[f] - 1, ", a whole number"}, x(n, f));
        }
  }
};

namespace functor {

/// Returns the number `stored` as an id, or −1 if it is not in [0, count). A fractional part is cut off.
template <class T>
GATEFOLD_HD Index field_id(T stored, Index count) {
  return stored >= 0 && stored < static_cast<T>(count) ? static_cast<Index>(stored) : Index(-1);
}
/// Reads the ids of one field, which are stored as numbers in column `column` of x, and writes them as Index to `to`.
template <class T, class B>
struct FieldIds {
  View<const T, 2, B> x;
  Index column, count;
  View<Index, 1, B> to;
  GATEFOLD_HD void operator()(Index n) const { to(n) = field_id(x(n, column), count); }
};
/// Reads an id from column `column` of x, and copies row id of the table `weight` to the columns of u from `first` on.
/// Writes NaN if the table has no row with this number. This happens only on a device, because only the host backends
/// check ids before.
template <class T, class B>
struct TakeField {
  View<const T, 2, B> x;
  Index column;
  View<const T, 2, B> weight;
  Index first;
  View<T, 2, B> u;
  T missing = std::numeric_limits<T>::quiet_NaN();  // set on the host: device code cannot call quiet_NaN

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index v = from_first(lanes, [&] { return field_id(x(n, column), weight.extent(0)); });
    const Index columns = weight.extent(1);
    T* to = u.data() + n * u.extent(1) + first;
    if (v < 0) {
      each_column<T>(lanes, columns,
                     [&](auto at, Index j) { at.store(to + j, typename decltype(at)::Value(missing)); });
    } else {
      const T* from = weight.data() + v * columns;
      each_column<T>(lanes, columns, [&](auto at, Index j) { at.store(to + j, at.load(from + j)); });
    }
  }
};

}  // namespace functor

}  // namespace gatefold
