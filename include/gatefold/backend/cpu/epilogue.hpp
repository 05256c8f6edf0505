#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/register_access.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// Calls epilogues for finished sums, and describes the memory layout of these sums.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// True if an epilogue runs on registers. An epilogue that accepts only scalars has the member
/// `static constexpr bool scalar_only = true;` and is called element by element.
template <class E, class T>
concept RegisterEpilogue = std::is_invocable_r_v < Register<T>,
const E&, const RegisterAccess<T>&, Index, Index, Index, Register < T >> &&!requires { requires E::scalar_only; };

/// The memory layout of sums [rows, columns], in panels of `width` columns:
///
///     element (i, x) = data[i · stride + x / width · panel + x mod width]
struct SumsLayout {
  Index stride, width, panel;

  /// Returns the layout of contiguous panels [rows, width].
  static SumsLayout panels(Index rows, Index width) { return {width, width, rows * width}; }

  /// Calls f(x, count, element) for each panel of row i, up to column `columns`. The panel has `count` columns from x
  /// on, and its first sum is data[element].
  template <class F>
  void each_panel(Index i, Index columns, const F& f) const {
    for (Index x = 0, at = i * stride; x < columns; x += width, at += panel)
      f(x, columns - x < width ? columns - x : width, at);
  }
};

/// Calls an epilogue for `rows` × `columns` sums, once for each element, and stores the results.
/// @param sums  [rows, columns] in      can be read up to the end of the last register of a row
/// @param c     [rows, c_stride] out    its element (0, 0) is element (s, j) of expert e
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

/// An epilogue with its type erased, so that the engine is compiled once for each element type.
template <class T>
struct Epilogue {
  const void* epilogue;
  bool stores;  // whether the epilogue stores the sums and has no other effect
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

/// Computes `rows` × `columns` hidden values and stores them in `hidden`, with shape [rows, Tile::stride]. A hidden
/// value is the result of the epilogue for one sum of each of M matrices.
/// @param M  number of matrices of the first product
template <std::size_t M, class T, class E>
void run_hidden(const E& epilogue, const T* const* sums, SumsLayout layout, Index rows, Index columns, Index e, Index s,
                Index j, T* hidden) {
  const E g = epilogue;  // a local copy, which no store through a pointer changes
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
        if (count == Tile<T>::columns) {  // the usual case, without a loop of two iterations
          value(each, RegisterAccess<T>{}, 0, load);
          value(each, RegisterAccess<T>{}, Register<T>::size, load);
        } else {
          RowLanes{}.template each<T>(count, [&](auto at, Index x) { value(each, at, x, load); });
        }
      }
    });
}

/// The epilogue that turns the first sums of a pair of products into hidden values, with its type erased.
template <class T>
struct HiddenEpilogue {
  const void* epilogue;
  void (*run)(const void*, const T* const* sums, SumsLayout, Index rows, Index columns, Index e, Index s, Index j,
              T* hidden);

  /// @param M  number of matrices of the first product
  template <std::size_t M, class E>
  static HiddenEpilogue with(const E& epilogue) {
    return {&epilogue, [](const void* f, const T* const* sums, SumsLayout layout, Index rows, Index columns, Index e,
                          Index s, Index j, T* hidden) {
              run_hidden<M>(*static_cast<const E*>(f), sums, layout, rows, columns, e, s, j, hidden);
            }};
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
