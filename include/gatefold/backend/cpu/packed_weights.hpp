#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// A float's upper half: 8 bits of mantissa, the sign and the exponent of a float.
struct Bfloat16 {
  std::uint16_t bits;

  /// Rounded to nearest, ties to even: off by 2⁻⁸ of the value at most (of normal values). NaN stays NaN.
  static Bfloat16 from(float v) {
    const auto u = std::bit_cast<std::uint32_t>(v);
    if (v != v) return {static_cast<std::uint16_t>((u >> 16) | 0x40)};
    return {static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// to[i] = from[i]
inline void widen(const Bfloat16* from, Index n, float* to) {
  Index i = 0;
#if defined(EIGEN_VECTORIZE_AVX512)
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
#endif
  for (; i < n; ++i) to[i] = from[i];
}

/// A register of neighbouring weights.
template <class T>
Register<T> load_weights(const T* p) {
  return Register<T>::load(p);
}
inline Register<float> load_weights(const Bfloat16* p) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (Register<float>::is<float, 64>)
    return Register<float>(_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16)));
#endif
  alignas(64) float wide[Register<float>::size];
  for (int i = 0; i < Register<float>::size; ++i) wide[i] = p[i];
  return Register<float>::load(wide);
}

/// sums[P][R, Tile::columns] = or += the chains (1) of tile.hpp of R rows of packed A and P panels of B that lie one after
/// the other: more sums at a time than one panel has, where few rows would wait for each other's additions.
template <class T, int R, int P, class W>
[[gnu::noinline]] void panels_sum(Index depth, const T* a, const W* b, T* sums, bool add) {
  using V = Register<T>;
  constexpr int columns = Tile<T>::columns, width = 2 * P;
  V s[R][width];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) s[i][j] = V(T(0));
  // Lines are asked for early, of half as wide weights twice as many; behind the last of these panels lie the next ones.
  constexpr Index lines = 32 * static_cast<Index>(sizeof(T) / sizeof(W)),
                  steps = std::max<Index>(lines * Ahead::line / (width * V::size * static_cast<Index>(sizeof(W))), 1);
  constexpr int registers_of_line = V::size * sizeof(W) < Ahead::line ? 2 : 1;
  for (Index k = 0; k < depth; ++k) {
    const W* ahead = b + (k + steps + (k + steps < depth ? 0 : (P - 1) * depth)) * columns;
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      if (j % registers_of_line == 0) __builtin_prefetch(ahead + j / 2 * depth * columns + j % 2 * V::size, 0, 3);
      const V w = load_weights(b + (j / 2 * depth + k) * columns + j % 2 * V::size);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) s[i][j] = madd(V(a[i * Tile<T>::stride + k]), w, s[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      T* to = sums + (j / 2 * R + i) * columns + j % 2 * V::size;
      (add ? V::load(to) + s[i][j] : s[i][j]).store(to);
    }
}
inline constexpr Index most_rows_of_panels = 8;
/// panels_sum of 1 to most_rows_of_panels rows and any number of panels.
template <class T, class W>
void panels_sum(Index rows, Index panels, Index depth, const T* a, const W* b, T* sums, bool add) {
  const auto of_rows = [&]<int R>(std::integral_constant<int, R>) {
    constexpr int most = R == 1 ? 4 : R <= Tile<T>::rows / 3 ? 2 : 1;  // as many sums as there are registers for
    Index p = 0;
    for (; p + most <= panels; p += most)
      panels_sum<T, R, most>(depth, a, b + p * depth * Tile<T>::columns, sums + p * R * Tile<T>::columns, add);
    for (; p < panels; ++p)
      panels_sum<T, R, 1>(depth, a, b + p * depth * Tile<T>::columns, sums + p * R * Tile<T>::columns, add);
  };
  [&]<int... R>(std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? of_rows(std::integral_constant<int, R + 1>{}) : void()), ...);
  }(std::make_integer_sequence<int, static_cast<int>(most_rows_of_panels)>{});
}

/// A matrix [depth, columns] of one expert in the order in which the register tile reads it:
///
///     [blocks of Tile::depth values of k][panels of Tile::columns columns][k, column], the last panel filled up with 0
///
/// in its own type or, of floats, rounded to half the size. Null pointers where there is none.
template <class T>
struct PackedMatrix {
  const T* full = nullptr;
  const Bfloat16* half = nullptr;

  explicit operator bool() const { return full || half; }

  static Index padded(Index columns) { return (columns + Tile<T>::columns - 1) / Tile<T>::columns * Tile<T>::columns; }
  static Index size(Index depth, Index columns) { return depth * padded(columns); }
  /// Where the panel of `column` begins in the block of k that holds `length` values from k on.
  static Index at(Index columns, Index k, Index length, Index column) { return k * padded(columns) + column * length; }

  /// The matrix `elements` further on: of another expert.
  PackedMatrix operator+(Index elements) const {
    return {full ? full + elements : nullptr, half ? half + elements : nullptr};
  }
  /// Part t of n of `count` elements, to ask for.
  Ahead ahead(Index element, Index count, Index t, Index n) const {
    return full ? Ahead::part(full + element, count, t, n) : Ahead::part(half + element, count, t, n);
  }
  /// The panel at an element. @param buffer  [Tile::depth, Tile::columns] to widen a rounded one into
  const T* panel(Index element, Index length, T* buffer) const {
    if (full) return full + element;
    if constexpr (std::is_same_v<T, float>) widen(half + element, length * Tile<T>::columns, buffer);
    return buffer;
  }
};

/// Expert weights kept in packed form beside the plain ones, found by where those lie. What a frozen model holds.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(PackedWeights&& other) noexcept : entries_(std::move(other.entries_)), panel_columns_(other.panel_columns_) {
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

  /// Whoever reads the weights says so first: a struct of the user's can bring them from a file compiled with another -march.
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
