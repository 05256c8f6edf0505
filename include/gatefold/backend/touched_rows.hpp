#pragma once

#include "gatefold/backend/lanes.hpp"
#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/table.hpp"

/// Loops over the elements of a gradient: setting to zero, elementwise steps, sums. If the gradient is a Table (a
/// matrix that records the rows that a backward pass has written), the loops skip all other rows, because these are 0.
namespace gatefold {

namespace functor {

/// Sets the rows of a Table that a backward pass has written (touched) to 0, and clears their marks.
template <class T>
struct ZeroTouched {
  TableRows<T> rows;
  GATEFOLD_HD void operator()(const auto& lanes, Index v) const {
    if (!from_first(lanes, [&] { return Index(rows.touched(v)); })) return;
    zero_columns(lanes, rows.data + v * rows.columns, rows.columns);
    if (lanes.lane == 0) rows.marks[v] = 0;
  }
};
/// Runs step(at, i) for the elements i of a Table that are in touched rows, that is, rows that a backward pass has
/// written.
template <class T, class Step>
struct StepTouched {
  TableRows<const T> rows;
  Step step;
  GATEFOLD_HD void operator()(const auto& lanes, Index v) const {
    if (!rows.touched(v)) return;
    // A local copy of the functor `step`. Compilers can keep its members in registers, because stores in the loop
    // cannot change it.
    const Step each = step;
    const Index first = v * rows.columns;
    each_column<T>(lanes, rows.columns, [&](const auto& at, Index j) { each(at, first + j); });
  }
};

}  // namespace functor

/// Divides the elements of a gradient into parts. Each part is summed separately, and the sums of the parts are then
/// added in a fixed order. A part is a range of `length` elements, or one row if the gradient is a Table. A row that no
/// backward pass has written counts as a part without elements, because it is 0.
struct Parts {
  Index size, length;
  // one mark per row of a Table, not 0 if a backward pass has written the row; null if all elements count
  const unsigned char* marks = nullptr;

  Index count() const { return length > 0 ? divide_up(size, length) : 0; }
  GATEFOLD_HD Index begin(Index part) const { return part * length; }
  GATEFOLD_HD Index elements(Index part) const {
    const Index rest = size - begin(part);
    return marks && !marks[part] ? 0 : rest < length ? rest : length;
  }
};
template <class T, class B>
Parts parts_of(const FlatTensor<T, B>& grad, Index length) {
  if (grad.all_touched()) return {grad.size(), length};
  return {grad.size(), grad.extent(1), grad.rows().marks};
}

/// Sets the written rows of a Table to 0 and clears their marks. From then on, the Table records the rows that are
/// written, even if all rows counted as written before.
template <class C, class T, class B>
void zero(C& ctx, Table<T, B>& x) {
  B::for_rows(ctx, x.extent(0), functor::ZeroTouched<T>{x.rows()});
  x.count_marks();
}

/// Runs step(at, i), a RegisterFunctor, for every element i of a gradient. If the gradient is a Table, rows that no
/// backward pass has written are left out.
template <class C, class T, class B, class Step>
void for_each_touched(C& ctx, const FlatTensor<T, B>& grad, const Step& step) {
  if (grad.all_touched()) {
    B::for_each(ctx, grad.size(), step);
  } else {
    const auto [elements, columns, marks, all] = grad.rows();
    B::for_rows(ctx, grad.extent(0),
                functor::StepTouched<std::remove_const_t<T>, Step>{{elements, columns, marks, all}, step});
  }
}

}  // namespace gatefold
