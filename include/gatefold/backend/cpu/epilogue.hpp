#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// Calls the epilogue of a matrix product (for example bias and activation) for its finished sums. Also describes the
/// memory layout of these sums.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// True if a product can call the epilogue E with whole vector registers of sums. An epilogue that accepts only scalars
/// has the member `static constexpr bool scalar_only = true;` and is called element by element.
template <class E, class T>
concept RegisterEpilogue = std::is_invocable_r_v < Register<T>,
const E&, const RegisterAccess<T>&, Index, Index, Index, Register < T >> &&!requires { requires E::scalar_only; };

/// The memory layout of a matrix of sums [rows, columns]. The columns are divided into panels of `width` columns, and
/// panels are `panel` elements apart:
///
///     element (i, x) = data[i · stride + x / width · panel + x mod width]
struct SumsLayout {
  Index stride, width, panel;

  /// Returns a layout in which each panel [rows, width] is contiguous, and the next panel follows it directly.
  static SumsLayout panels(Index rows, Index width) { return {width, width, rows * width}; }

  /// Calls f(x, count, element) for each panel of row i, up to column `columns`. A panel is a group of at most `width`
  /// columns. It has `count` columns, begins at column x, and its first sum is data[element].
  template <class F>
  void each_panel(Index i, Index columns, const F& f) const {
    for (Index x = 0, at = i * stride; x < columns; x += width, at += panel)
      f(x, columns - x < width ? columns - x : width, at);
  }
};

/// Applies the epilogue of a product to each of `rows` × `columns` sums, and stores the results in c. A
/// RegisterEpilogue is called once for each register of sums, other epilogues once for each sum.
/// @param sums  [rows, columns] in      the sums; each row must be readable to the end of its last register
/// @param c     [rows, c_stride] out    the block of expert e's result that begins at row s and column j
template <class T, class E>
void run_epilogue(const E& epilogue, const T* sums, SumsLayout layout, Index rows, Index columns, Index e, Index s,
                  Index j, T* c, Index c_stride) {
  constexpr Index size = Register<T>::size;
  for (Index i = 0; i < rows; ++i, c += c_stride) {
    layout.each_panel(i, columns, [&](Index first, Index count, Index at) {
      const T* from = sums + at - first;
      const Index end = first + count;
      if constexpr (RegisterEpilogue<E, T>) {
        const auto step = [&](Index x, int n) {
          const RegisterAccess<T> access{n};
          access.store(c + x, epilogue(access, e, s + i, j + x, Register<T>::load(from + x)));
        };
        Index x = first;
        for (; x + size <= end; x += size) step(x, size);
        if (x < end) step(x, static_cast<int>(end - x));
      } else {
        for (Index x = first; x < end; ++x) c[x] = epilogue(OneElement<T>{}, e, s + i, j + x, from[x]);
      }
    });
  }
}

/// An epilogue (the function that a product applies to each sum) with its type erased. The code of products is
/// therefore compiled once for each element type, not once for each epilogue.
template <class T>
struct Epilogue {
  const void* epilogue;
  bool stores;  // true if the epilogue only stores the sums, without a change
  void (*run)(const void*, const T*, SumsLayout, Index, Index, Index, Index, Index, T*, Index);

  template <class E>
  static Epilogue with(const E& epilogue) {
    return {&epilogue, std::is_same_v<E, functor::Store>,
            [](const void* f, const T* sums, SumsLayout layout, Index rows, Index columns, Index e, Index s, Index j,
               T* c, Index c_stride) {
              run_epilogue(*static_cast<const E*>(f), sums, layout, rows, columns, e, s, j, c, c_stride);
            }};
  }
};

/// Computes hidden values [rows, columns] of an MLP from the sums of its first product, and stores them in `hidden`
/// [rows, Tile::stride]. To compute a hidden value, the epilogue gets one sum of each of M weight matrices.
/// @param M  number of weight matrices of the first product, 1 or 2
template <std::size_t M, class T, class E>
void run_hidden(const E& epilogue, const T* const* sums, SumsLayout layout, Index rows, Index columns, Index e, Index s,
                Index j, T* hidden) {
  // A local copy of the epilogue. Compilers can keep its members in registers, because stores through pointers cannot
  // change it.
  const E g = epilogue;
  for (Index i = 0; i < rows; ++i, hidden += Tile<T>::stride)
    layout.each_panel(i, columns, [&](Index first, Index count, Index place) {
      const auto value = [&]<std::size_t... m>(std::index_sequence<m...>, const auto& at, Index x, auto load) {
        at.store(hidden + first + x, g(at, e, s + i, j + first + x, load(sums[m] + place + x)...));
      };
      constexpr std::make_index_sequence<M> each{};
      if constexpr (requires { requires E::scalar_only; }) {
        for (Index x = 0; x < count; ++x) value(each, OneElement<T>{}, x, [](const T* p) { return *p; });
      } else {
        const auto load = [](const T* p) { return Register<T>::load(p); };
        // The usual case: a whole panel of columns. It is two vector registers wide, so that no loop is needed.
        if (count == Tile<T>::columns) {
          value(each, RegisterAccess<T>{}, 0, load);
          value(each, RegisterAccess<T>{}, Register<T>::size, load);
        } else {
          RowLanes{}.template each<T>(count, [&](auto at, Index x) { value(each, at, x, load); });
        }
      }
    });
}

/// An epilogue with its type erased. It turns sums of the first product of an MLP into hidden values, for example by an
/// activation function.
template <class T>
struct HiddenEpilogue {
  const void* epilogue;
  void (*run)(const void*, const T* const* sums, SumsLayout, Index rows, Index columns, Index e, Index s, Index j,
              T* hidden);

  /// Erases the type of an epilogue.
  /// @param M  number of weight matrices of the first product of the MLP, 1 or 2
  template <std::size_t M, class E>
  static HiddenEpilogue with(const E& epilogue) {
    return {&epilogue, [](const void* f, const T* const* sums, SumsLayout layout, Index rows, Index columns, Index e,
                          Index s, Index j, T* hidden) {
              run_hidden<M>(*static_cast<const E*>(f), sums, layout, rows, columns, e, s, j, hidden);
            }};
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
