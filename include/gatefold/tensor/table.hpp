#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

/// The rows of a Table (a matrix that records which rows were written) and the marks of these rows. Code that writes
/// only some rows uses TableRows to mark these rows as written.
template <class T>
struct TableRows {
  using Mark = std::conditional_t<std::is_const_v<T>, const unsigned char, unsigned char>;
  T* data;
  Index columns;
  Mark* marks;  // [rows] a mark is not 0 if its row was written; not used if `all` is true
  bool all;     // true: all rows count as written

  GATEFOLD_HD bool touched(Index row) const { return all || marks[row] != 0; }
};

/// A matrix of which a training step uses few rows, for example the weights of an Embedding. As a gradient it records
/// the rows that backward has written (touched) since the matrix was set to 0. All other rows are 0, and the functions
/// of backend/touched_rows.hpp skip them. In a pack, a Table is a tensor like any other.
///
/// Non-const access to elements by view(), data() or an index marks all rows as touched. Code that does not support
/// tables therefore gets correct results, but processes all rows. A call of `rows` marks no row.
template <class T, class B>
class Table {
 public:
  static constexpr int rank = 2;

  Table() = default;
  Table(Tensor<T, 2, B>&& elements) : elements_(std::move(elements)), marks_(elements_.extent(0)) {}

  void resize(Index rows, Index columns) {
    elements_.resize(rows, columns);
    marks_.resize(rows);
    all_ = true;
  }
  template <class U, class OtherB>
  void resize_like(const Table<U, OtherB>& other) {
    if (other.is_skipped()) return skip();
    resize(other.extent(0), other.extent(1));
  }
  /// Marks the table as a gradient that is not needed, so that backward passes do not compute it (see Tensor.skip).
  void skip() {
    resize(0, 0);
    elements_.skip();
  }
  bool is_skipped() const { return elements_.is_skipped(); }

  View<const T, 2, B> view() const { return elements_; }
  View<T, 2, B> view() {
    touch_all();
    return elements_;
  }
  operator View<const T, 2, B>() const { return elements_; }
  operator View<T, 2, B>() { return view(); }
  const T* data() const { return elements_.data(); }
  T* data() { return view().data(); }
  const T& operator()(Index row, Index column) const { return elements_(row, column); }
  T& operator()(Index row, Index column) {
    touch_all();
    return elements_(row, column);
  }
  Index extent(int d) const { return elements_.extent(d); }
  Index extent(std::size_t d) const { return elements_.extent(d); }
  Index size() const { return elements_.size(); }

  /// Returns the rows of the table and their marks. It is for code that writes only rows that are marked as written,
  /// and for code that marks the rows that it writes.
  TableRows<T> rows() { return {elements_.data(), elements_.extent(1), marks_.data(), all_}; }
  TableRows<const T> rows() const { return {elements_.data(), elements_.extent(1), marks_.data(), all_}; }
  bool all_touched() const { return all_; }
  void touch_all() { all_ = true; }
  /// Begins to record which rows are written (touched). From now on, only marked rows count as touched; before, all
  /// rows counted. When you call it, all rows without a mark must be 0.
  void count_marks() { all_ = false; }

 private:
  Tensor<T, 2, B> elements_;           // [V, D]
  Tensor<unsigned char, 1, B> marks_;  // [V]
  bool all_ = true;
};

}  // namespace gatefold
