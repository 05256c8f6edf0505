#pragma once

#include <cstddef>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/core/types.hpp"

/// What happens between the two products of a pair.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// What turns `count` first sums into the hidden value, with its type erased.
template <class T>
struct Middle {
  const void* epilogue;
  void (*run)(const void*, const T* const* sums, SumsLayout, Index rows, Index columns, Index e, Index s, Index j,
              T* hidden);

  /// @param M  how many matrices the first product has: the epilogue receives that many sums
  template <std::size_t M, class E>
  static Middle with(const E& epilogue) {
    return {&epilogue, [](const void* f, const T* const* sums, SumsLayout layout, Index rows, Index columns, Index e,
                          Index s, Index j, T* hidden) {
              const E g = *static_cast<const E*>(f);  // of its own: no store through a pointer changes it
              for (Index i = 0; i < rows; ++i, hidden += Tile<T>::stride)
                layout.each_panel(i, columns, [&](Index first, Index count, Index place) {
                  const auto value = [&]<std::size_t... m>(std::index_sequence<m...>, const auto& at, Index x,
                                                           auto load) {
                    at.store(hidden + first + x, g(at, e, s + i, j + first + x, load(sums[m] + place + x)...));
                  };
                  constexpr std::make_index_sequence<M> each{};
                  if constexpr (requires { requires E::scalar_only; }) {
                    for (Index x = 0; x < count; ++x) value(each, OneElement<T>{}, x, [](const T* p) { return *p; });
                  } else {
                    const auto load = [](const T* p) { return Register<T>::load(p); };
                    if (count == Tile<T>::columns) {  // nearly always: without a loop of two turns
                      value(each, RegisterAccess<T>{}, 0, load);
                      value(each, RegisterAccess<T>{}, Register<T>::size, load);
                    } else {
                      RowLanes{}.template each<T>(count, [&](auto at, Index x) { value(each, at, x, load); });
                    }
                  }
                });
            }};
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
