#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// Expert weights kept in packed form beside the plain ones, found by where those lie. What a frozen model holds.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(PackedWeights&& other) noexcept
      : entries_(std::move(other.entries_)), panel_columns_(other.panel_columns_) {
    other.entries_.clear();
  }
  PackedWeights& operator=(PackedWeights&& other) noexcept {
    entries_.swap(other.entries_);
    std::swap(panel_columns_, other.panel_columns_);
    return *this;
  }
  ~PackedWeights() {
    for (const Entry& entry : entries_) release(entry.packed);
  }

  /// Pack w [E, depth, columns].
  /// @param round  float weights to bfloat16
  template <class Context, class T>
  void add(Context& ctx, const T* w, Index experts, Index depth, Index columns, bool round) {
    using Matrix = PackedMatrix<T>;
    const bool half = round && std::is_same_v<T, float>;
    const Index size = Matrix::size(depth, columns), blocks = (depth + Tile<T>::depth - 1) / Tile<T>::depth;
    if (experts * size == 0) return;
    const std::size_t bytes = static_cast<std::size_t>(experts * size) * (half ? sizeof(Bfloat16) : sizeof(T));
    entries_.reserve(entries_.size() + 1);
    void* packed = allocate(bytes);
    entries_.push_back({w, packed, half});
    parallel_for(ctx.executor(), ctx.threads(), experts * blocks, [&](Index i, int) noexcept {
      const Index e = i / blocks, k = i % blocks * Tile<T>::depth, length = std::min(Tile<T>::depth, depth - k);
      const Operand<T> b{w + e * depth * columns, columns, false};
      const Index to = e * size + Matrix::at(columns, k, length, 0), panel = length * Tile<T>::columns;
      if (!half) return pack_panels(b, 0, columns, k, length, static_cast<T*>(packed) + to);
      alignas(64) T buffer[Tile<T>::depth * Tile<T>::columns];
      Bfloat16* rounded = static_cast<Bfloat16*>(packed) + to;
      for (Index j = 0; j < columns; j += Tile<T>::columns, rounded += panel) {
        pack_panels(b, j, std::min<Index>(Tile<T>::columns, columns - j), k, length, buffer);
        for (Index x = 0; x < panel; ++x) rounded[x] = Bfloat16::from(static_cast<float>(buffer[x]));
      }
    });
  }

  /// Whoever reads the weights says so first: a struct of the user's can bring them from a file compiled with another
  /// -march.
  /// @throws ArgumentError unless panels are as wide in this file as where they were packed
  void expect_readable() const {
    expect(panel_columns_ == Tile<float>::columns, "Cpu::Context.use", "packed weights",
           Joined{"panels of ", Tile<float>::columns, " columns (freeze and infer are compiled with different -march)"},
           panel_columns_);
  }

  /// The packed form of the weights at w, of the first expert; null if there is none.
  template <class T>
  PackedMatrix<T> find(const T* w) const {
    for (const Entry& entry : entries_)
      if (entry.plain == w) {
        if (entry.half) return {nullptr, static_cast<const Bfloat16*>(entry.packed)};
        return {static_cast<const T*>(entry.packed), nullptr};
      }
    return {};
  }

 private:
  struct Entry {
    const void* plain;
    void* packed;
    bool half;
  };
  std::vector<Entry> entries_;
  int panel_columns_ = Tile<float>::columns;
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
