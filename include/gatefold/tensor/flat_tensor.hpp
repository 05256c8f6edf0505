#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/core/types.hpp"
#include "gatefold/tensor/table.hpp"

/// Tensor types that do not depend on the rank (number of dimensions), so that code for tensors of any rank is compiled
/// once.
namespace gatefold {

/// Refers to all elements of a Tensor or Table as one array, and also has the extents of the tensor. It does not own
/// the elements: the tensor must outlive it and stay at its address. Non-const access to the elements marks all rows of
/// a Table as written. A call of `rows` marks no row.
template <class T, class B>
class FlatTensor;

/// A type-erased reference to a Tensor or Table: one type for all ranks and element types. The elements belong to the
/// Tensor or Table. To access them with their type, construct a FlatTensor from the reference.
struct AnyTensor {
  const void* type;  // type_of<T>() of the elements
  void* elements;
  Index size;
  int rank;
  Index extents[4];
  // Marks of the rows of a Table: the mark of a row is not 0 if the row was written (touched). Null if all rows count
  // as touched.
  unsigned char* marks = nullptr;
  void* table = nullptr;
  void (*touch_all)(void* table) = nullptr;
  bool skipped = false;  // true if the tensor is marked by Tensor.skip

  template <class T>
  static const void* type_of() {
    return detail_::type_id<std::remove_const_t<T>>();
  }
  /// Makes a reference to the tensor t.
  /// @param constant  true if the elements are only read through this reference
  template <class T, int Rank, class B>
  explicit AnyTensor(Tensor<T, Rank, B>& t, bool constant = false)
      : type(type_of<T>()),
        elements(constant ? const_cast<T*>(std::as_const(t).data()) : t.data()),
        size(t.size()),
        rank(Rank),
        extents{} {
    for (int d = 0; d < Rank; ++d) extents[d] = t.extent(d);
    skipped = t.is_skipped();
  }
  template <class T, class B>
  explicit AnyTensor(Table<T, B>& t, bool = false)
      : type(type_of<T>()),
        elements(t.rows().data),
        size(t.size()),
        rank(2),
        extents{t.extent(0), t.extent(1)},
        marks(t.all_touched() ? nullptr : t.rows().marks),
        table(&t),
        touch_all([](void* of) { static_cast<Table<T, B>*>(of)->touch_all(); }) {
    skipped = t.is_skipped();
  }
  template <class T, class B>
  explicit AnyTensor(FlatTensor<T, B>& t, bool = false) : AnyTensor(t.any_) {}
};

template <class T, class B>
class FlatTensor {
  friend struct AnyTensor;

 public:
  /// Makes a FlatTensor with elements of type T from a type-erased reference.
  /// @throws ArgumentError unless the elements have type T
  explicit FlatTensor(const AnyTensor& any) : any_(any) {
    expect(any.type == AnyTensor::type_of<T>(), "FlatTensor", "tensor", "elements of the same type as its pack",
           "another type");
  }
  template <int Rank>
  FlatTensor(Tensor<T, Rank, B>& t) : any_(t) {}
  template <int Rank>
  FlatTensor(const Tensor<std::remove_const_t<T>, Rank, B>& t)
      : any_(const_cast<Tensor<std::remove_const_t<T>, Rank, B>&>(t), true) {
    static_assert(std::is_const_v<T>);
  }
  FlatTensor(Table<T, B>& t) : any_(t) {}
  FlatTensor(const Table<std::remove_const_t<T>, B>& t) : any_(const_cast<Table<std::remove_const_t<T>, B>&>(t)) {
    static_assert(std::is_const_v<T>);
  }

  const T* data() const { return static_cast<const T*>(any_.elements); }
  T* data() {
    if constexpr (!std::is_const_v<T>) touch_all();
    return rows().data;
  }
  View<const T, 1, B> view() const { return {data(), size()}; }
  View<T, 1, B> view() { return {data(), size()}; }
  /// Returns the elements as a view with the tensor's extents.
  /// @pre Rank, the number of dimensions of the view, is rank()
  template <int Rank>
  View<T, Rank, B> as() {
    const auto extents = [&]<std::size_t... D>(std::index_sequence<D...>) {
      return View<T, Rank, B>(data(), any_.extents[D]...);
    };
    return extents(std::make_index_sequence<std::size_t{Rank}>{});
  }
  Index size() const { return any_.size; }
  int rank() const { return any_.rank; }
  Index extent(int d) const { return any_.extents[d]; }

  /// Returns false for a Table that records which rows were written (touched). Otherwise returns true, because all rows
  /// count as touched.
  bool all_touched() const { return !any_.marks; }
  bool is_skipped() const { return any_.skipped; }
  TableRows<T> rows() const { return {static_cast<T*>(any_.elements), any_.extents[1], any_.marks, all_touched()}; }

 private:
  void touch_all() {
    if (!any_.table) return;
    any_.touch_all(any_.table);
    any_.marks = nullptr;
  }
  AnyTensor any_;
};
template <class T, int Rank, class B>
FlatTensor(Tensor<T, Rank, B>&) -> FlatTensor<T, B>;
template <class T, int Rank, class B>
FlatTensor(const Tensor<T, Rank, B>&) -> FlatTensor<const T, B>;
template <class T, class B>
FlatTensor(Table<T, B>&) -> FlatTensor<T, B>;
template <class T, class B>
FlatTensor(const Table<T, B>&) -> FlatTensor<const T, B>;

namespace detail_::pack {

/// Reads the element type T and the backend B of a pack (a struct of tensors) from its template arguments, for example
/// from Params<T, B>.
template <class P>
struct Of {
  static constexpr bool known = false;
};
template <template <class, class> class P, class T, class B>
requires std::is_arithmetic_v<T>
struct Of<P<T, B>> {
  static constexpr bool known = true;
  using Element = T;
  using Backend = B;
};
template <class T, int Rank, class B>
struct Of<Tensor<T, Rank, B>> {
  static constexpr bool known = true;
  using Element = T;
  using Backend = B;
};
/// A vector, a tuple or another template whose first argument is a pack has the element type and backend of this pack.
template <template <class...> class Some, class P, class... More>
requires(Of<P>::known) struct Of<Some<P, More...>> : Of<P> {
};

}  // namespace detail_::pack

}  // namespace gatefold
