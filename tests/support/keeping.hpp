#pragma once

#include <map>
#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"

namespace gatefold::support {

/// A backend like CpuBf16 that also keeps rounded copies of weights, which forward products read, and counts the weight
/// tensors that it rounds. (CpuBf16 keeps no copies, because a step would read each of them only once.)
struct Keeping : cpu::Primitives<Keeping, RoundedFloats> {
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  using FullPrecision = cpu::Primitives<Keeping, AsTheyAre>;

  struct PackedWeights : cpu::PackedWeights {
    std::map<const void*, Index> columns;
    bool find(const void* w, Index of) const {
      const auto found = columns.find(w);
      return found != columns.end() && found->second == of;
    }
    std::size_t size() const { return columns.size(); }
  };
  static inline Index rounded = 0;
  template <class T>
  static void refresh(Context& ctx, View<const T, 3, Keeping> w, PackedWeights& packed) {
    if constexpr (std::is_same_v<T, float>) {
      if (w.empty()) return;
      packed.template add<Bfloat16>(ctx, w.data(), w.extent(0), w.extent(1), w.extent(2), Weights::bfloat16);
      packed.columns[w.data()] = w.extent(2);
      ++rounded;
    }
  }
};

}  // namespace gatefold::support
