#pragma once

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>  // for std::ranges::borrowed_range; <ranges> would take four times as long to compile
#include <string>
#include <type_traits>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// A non-owning, row-major, contiguous array of rank 1 to 4 in memory of backend B.
///
/// Converts from a pointer and extents, from contiguous host ranges (rank 1) and from row-major Eigen matrices
/// (rank 2); a view of `T` converts to a view of `const T`.
/// @throws ArgumentError if the elements of a matrix or vector are not contiguous
template <class T, int Rank, class B>
class View;

/// Types of the parameters of functions: In for views that a function reads, Out for views that it writes. Template
/// arguments are not deduced from these parameters, so that callers can pass tensors and mutable views, which then
/// convert. T and B are deduced from other parameters, for example of type Params<T, B>.
template <class T, int Rank, class B>
using In = std::type_identity_t<View<const T, Rank, B>>;
template <class T, int Rank, class B>
using Out = std::type_identity_t<View<T, Rank, B>>;

namespace detail_::shape {

/// True for types with a member `rank`: views and tensors of this library, which define their own conversions.
template <class R>
concept HasRank = requires {
  std::remove_cvref_t<R>::rank;
};

[[noreturn]] void stop_out_of_range(const Index* index, const Index* extents, int rank);

/// True for a type with a function data(), which returns the address of its elements.
template <class R>
concept HasData = requires(R& r) {
  r.data();
};

/// True for a contiguous range in host memory, such as std::span, std::vector or an Eigen vector.
template <class R, class T>
concept Span = !HasRank<R> && requires(R & r) {
  { r.data() } -> std::convertible_to<T*>;
  { r.size() } -> std::convertible_to<std::size_t>;
};

/// True for a type with the functions of Eigen::Matrix or Eigen::Map. This header does not include Eigen.
template <class M, class T>
concept Matrix = !HasRank<M> && requires(M & m) {
  { m.data() } -> std::convertible_to<T*>;
  { m.rows() } -> std::convertible_to<Index>;
  { m.cols() } -> std::convertible_to<Index>;
  { m.outerStride() } -> std::convertible_to<Index>;
  { m.innerStride() } -> std::convertible_to<Index>;
};

/// True for Eigen classes that own their elements, for example Eigen::Matrix, but not for Eigen::Map.
template <class R>
concept Plain = std::is_same_v<typename R::PlainObject, std::remove_const_t<R>>;
/// True for all Eigen classes of matrices and vectors: they have a member type PlainObject.
template <class R>
concept OfEigen = requires {
  typename R::PlainObject;
};
/// True for an rvalue that owns its elements, for example a vector or an Eigen::Matrix, but not a span, a Map or
/// another view.
template <class R>
concept Temporary = !std::is_lvalue_reference_v<R> && !HasRank<R> &&
                    (Plain<R> || (!OfEigen<R> && std::ranges::range<R> && !std::ranges::borrowed_range<R>));

template <class From, class B>
constexpr bool shares_memory();

}  // namespace detail_::shape

template <class T, int Rank, class B>
class View {
  GATEFOLD_REQUIRE(Rank >= 1 && Rank <= 4, "gatefold: views have rank 1 to 4");

 public:
  using Element = std::remove_const_t<T>;
  static constexpr int rank = Rank;

  View() = default;

  template <class... Extent, class = std::enable_if_t<sizeof...(Extent) == Rank && (std::is_integral_v<Extent> && ...)>>
  GATEFOLD_HD constexpr View(T* data, Extent... extents) : data_(data), extents_{static_cast<Index>(extents)...} {}

  template <class U, class = std::enable_if_t<std::is_const_v<T> && std::is_same_v<U, Element>>>
  GATEFOLD_HD constexpr View(const View<U, Rank, B>& other) : data_(other.data()) {
    for (int d = 0; d < Rank; ++d) extents_[d] = other.extent(d);
  }

  /// Converts from a view of a different backend that uses the same memory, for example from Cpu to CpuBf16.
  template <class U, class From,
            class = std::enable_if_t<detail_::shape::shares_memory<From, B>() &&
                                     (std::is_same_v<U, T> || std::is_same_v<const U, T>)>>
  GATEFOLD_HD constexpr View(const View<U, Rank, From>& other) : data_(other.data()) {
    for (int d = 0; d < Rank; ++d) extents_[d] = other.extent(d);
  }

  template <
      class R,
      std::enable_if_t<Rank == 1 && B::is_host && detail_::shape::Span<R, T> && !detail_::shape::Temporary<R>, int> = 0>
  View(R&& range) : data_(range.data()), extents_{static_cast<Index>(range.size())} {
    if constexpr (requires { range.innerStride(); })
      expect(range.innerStride() == 1, "View", "vector", "contiguous elements (an inner stride of 1)",
             range.innerStride());
  }

  template <class M,
            std::enable_if_t<Rank == 2 && B::is_host && detail_::shape::Matrix<M, T> && !detail_::shape::Temporary<M>,
                             int> = 0>
  View(M&& matrix)
      : data_(matrix.data()), extents_{static_cast<Index>(matrix.rows()), static_cast<Index>(matrix.cols())} {
    GATEFOLD_REQUIRE(std::remove_cvref_t<M>::IsRowMajor, "gatefold: a matrix must be row-major (Eigen::RowMajor)");
    expect(matrix.outerStride() == matrix.cols(), "View", "matrix.outerStride",
           Joined{matrix.cols(), " (rows without gaps)"}, matrix.outerStride());
    expect(matrix.innerStride() == 1, "View", "matrix", "contiguous elements (an inner stride of 1)",
           matrix.innerStride());
  }

  template <class R,
            std::enable_if_t<B::is_host && detail_::shape::Temporary<R> &&
                                 (detail_::shape::Span<R, T> || detail_::shape::Matrix<R, T>),
                             int> = 0,
            detail_::Sentence says = "gatefold: a View does not keep a temporary alive; give it a name first">
  View(R&& temporary) = delete;  // gatefold: a View does not keep a temporary alive; give it a name first

  template <
      class R, class... Extent,
      std::enable_if_t<(sizeof...(Extent) > 0) && detail_::shape::HasData<R> && (std::is_integral_v<Extent> && ...),
                       int> = 0,
      detail_::Sentence says = "gatefold: a View with extents is made of a pointer: View{v.data(), rows, columns}">
  View(R&& range,  // gatefold: a View with extents is made of a pointer: View{v.data(), rows, columns}
       Extent...) = delete;

  GATEFOLD_HD constexpr T* data() const { return data_; }
  GATEFOLD_HD constexpr Index extent(int d) const { return extents_[d]; }
  GATEFOLD_HD constexpr bool empty() const { return size() == 0; }
  GATEFOLD_HD constexpr Index size() const {
    Index n = 1;
    for (int d = 0; d < Rank; ++d) n *= extents_[d];
    return n;
  }

  template <class... Extent>
  GATEFOLD_HD constexpr T& operator()(Extent... i) const {
    GATEFOLD_REQUIRE(sizeof...(Extent) == Rank,
                     "gatefold: an element of a View<T, Rank, B> needs Rank indices, one for each dimension");
#ifndef __CUDA_ARCH__
    GATEFOLD_ASSERT(B::is_host, "View: the host accesses an element of device memory");
#endif
    const Index index[] = {static_cast<Index>(i)...};
    Index offset = 0;
    for (int d = 0; d < Rank; ++d) {
      GATEFOLD_ASSERT_OR(0 <= index[d] && index[d] < extents_[d], "View: index out of range",
                         detail_::shape::stop_out_of_range(index, extents_, Rank));
      offset = offset * extents_[d] + index[d];
    }
    return data_[offset];
  }

  /// Returns a view of the same elements with different extents, for example `x.as(N * L, D)`. The sizes must be equal.
  template <class... Extent>
  GATEFOLD_HD constexpr View<T, static_cast<int>(sizeof...(Extent)), B> as(Extent... extents) const {
    GATEFOLD_ASSERT((Index(1) * ... * static_cast<Index>(extents)) == size(), "View.as: sizes differ");
    return {data_, extents...};
  }

  /// Returns a view of the rows [first, first + count), that is, of a part of the first dimension.
  GATEFOLD_HD constexpr View rows(Index first, Index count) const {
    GATEFOLD_ASSERT(0 <= first && 0 <= count && first + count <= extents_[0], "View.rows: out of range");
    View part = *this;
    Index stride = 1;
    for (int d = 1; d < Rank; ++d) stride *= extents_[d];
    part.data_ = data_ + first * stride;
    part.extents_[0] = count;
    return part;
  }

 private:
  T* data_ = nullptr;
  Index extents_[std::size_t{Rank}] = {};
};

/// Returns rows [first, first + count) of a view. A view without memory, for example an optional mask, is returned
/// unchanged.
template <class V>
GATEFOLD_HD constexpr V rows_if_any(const V& v, Index first, Index count) {
  return v.data() ? v.rows(first, count) : v;
}

namespace detail_::shape {

/// Prints `View: index [7, 0] is out of range of [5, 4]`, and stops the program as an assertion does.
[[noreturn, gnu::cold, gnu::noinline]] inline void stop_out_of_range(const Index* index, const Index* extents,
                                                                     int rank) {
  const auto list = [rank](const Index* of) {
    std::string text = "[";
    for (int d = 0; d < rank; ++d) text.append(d ? ", " : "").append(std::to_string(of[d]));
    return text + "]";
  };
  std::fprintf(stderr, "View: index %s is out of range of %s\n", list(index).c_str(), list(extents).c_str());
  std::fflush(stderr);
  std::abort();
}

/// True for two different backends that use the same memory: both are on the host, or both have the same type `Memory`.
template <class From, class B>
constexpr bool shares_memory() {
  if constexpr (std::is_same_v<From, B>) {
    return false;
  } else if constexpr (requires {
                         typename From::Memory;
                         typename B::Memory;
                       }) {
    return std::is_same_v<typename From::Memory, typename B::Memory>;
  } else {
    return From::is_host && B::is_host;
  }
}

}  // namespace detail_::shape
}  // namespace gatefold
