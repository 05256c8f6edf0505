#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/quantised_format.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/tile_from_memory.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/backend/panels.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Packed copies of expert weights, which make matrix products faster. A copy is found by the address of the plain
/// weights. Frozen models (models prepared for inference) hold a PackedWeights.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(PackedWeights&&) = default;
  /// Swaps the packed copies of the two objects, as the move assignment of Tensor swaps the memory of two tensors.
  PackedWeights& operator=(PackedWeights&& other) noexcept {
    entries_.swap(other.entries_);
    kept_.swap(other.kept_);
    std::swap(panel_columns_, other.panel_columns_);
    return *this;
  }

  /// Packs the weights w [E, depth, columns] of E experts for products of operand type P. Replaces an earlier packed
  /// copy of w for P.
  /// @param form  the form in which the copy is stored. If P is Bfloat16, Weights::unchanged also stores bfloat16
  /// @throws ArgumentError if double weights should be quantised
  template <class P, class Context>
  void add(Context& ctx, const SumOf<P>* w, Index experts, Index depth, Index columns, Weights form) {
    if (experts * PackedMatrix<P>::size(depth, columns) == 0) return;
    const Part<SumOf<P>> all{{w, columns, false}, 0, experts, 0, columns};
    pack<P>(ctx, memory(entry<P>(w, experts, depth, columns, form)), all, depth, columns);
  }
  /// Packs the matrix wᵀ [depth, columns] for products of operand type P, like `add`.
  /// @param w  [columns, depth], for example the weights of an output layer, [V, D]
  template <class P, class Context>
  void add_transposed(Context& ctx, const SumOf<P>* w, Index depth, Index columns, Weights form) {
    if (PackedMatrix<P>::size(depth, columns) == 0) return;
    const Part<SumOf<P>> all{{w, depth, true}, 0, 1, 0, columns};
    pack<P>(ctx, memory(entry<P>(w, 1, depth, columns, form)), all, depth, columns);
  }
  /// Allocates memory for the packed copy of weights [E, depth, columns]. `pack` writes the copy later, some experts at
  /// a time, or pack_columns writes it, some columns at a time. The packed copy can be the only copy of the weights.
  /// The weights then have no elements of their own.
  /// @param w  the address of the weights if they also have elements, for example in an embedding; otherwise null
  /// @return the address by which products find the copy: w, or an odd address if w is null. Use it as the address of
  ///         the weights. Elements are never at an odd address, so expect_elements can detect weights without elements
  template <class P>
  SumOf<P>* reserve(Index experts, Index depth, Index columns, Weights form, SumOf<P>* w = nullptr) {
    return address_of<P>(memory(entry<P>(w, experts, depth, columns, form)), w);
  }
  /// Adds a packed copy whose bytes are in memory of another object, for example a mapped file. Copies no bytes.
  /// @param memory  the bytes. The entry keeps a reference, so they stay valid
  /// @param w       as for `reserve`
  /// @return the address, as for `reserve`, or null if this code reads another order of bytes. If the result is null,
  ///         nothing is added
  template <class P>
  SumOf<P>* share(const Panels& panels, const std::shared_ptr<std::byte>& memory, SumOf<P>* w = nullptr) {
    Entry made = entry<P>(w, panels.experts, panels.depth, panels.columns, panels.form);
    if (!order(made, panels.experts, panels.depth, panels.columns).same_order(panels)) return nullptr;
    made.packed = memory;
    entries_.push_back(std::move(made));
    return address_of<P>(entries_.back(), w);
  }
  /// Keeps a reference to `memory`, so that the memory stays valid as long as this object exists. Call it for weights
  /// whose elements are in memory of another object, for example a mapped file.
  void keep(const std::shared_ptr<std::byte>& memory) { kept_.push_back(memory); }
  /// Packs the weights w [count, depth, columns] of the experts from number `first` on into reserved memory.
  /// @param address  the address that `reserve` returned
  template <class P, class Context>
  void pack(Context& ctx, const SumOf<P>* address, Index first, Index count, const SumOf<P>* w, Index depth,
            Index columns) {
    for (const Entry& entry : entries_)
      if (entry.plain == address)
        pack<P>(ctx, entry, Part<SumOf<P>>{{w, columns, false}, first, count, 0, columns}, depth, columns);
  }
  /// Packs `count` columns of a matrix wᵀ [depth, columns], from column number `first` on, into reserved memory.
  /// @param first  a multiple of Tile::columns
  /// @param w      [count, depth]. count is a multiple of Tile::columns, unless these are the last columns
  template <class P, class Context>
  void pack_columns(Context& ctx, const SumOf<P>* address, Index first, Index count, const SumOf<P>* w, Index depth,
                    Index columns) {
    for (const Entry& entry : entries_)
      if (entry.plain == address)
        pack<P>(ctx, entry, Part<SumOf<P>>{{w, depth, true}, 0, 1, first, count}, depth, columns);
  }

  /// Returns the bytes of the packed copy of float weights [E, depth, columns] at an address. `data` is null if there
  /// is no such copy.
  Panels panels(const float* w, Index experts, Index depth, Index columns) const {
    expect_readable();
    for (const Entry& entry : entries_)
      if (entry.plain == w) return order(entry, experts, depth, columns);
    return {};
  }
  /// Returns the memory that `reserve` has allocated for an address, or null.
  std::byte* reserved(const void* address) {
    for (const Entry& entry : entries_)
      if (entry.plain == address) return static_cast<std::byte*>(entry.packed.get());
    return nullptr;
  }

  /// Checks that the code that calls this can read the packed weights. A model can hold weights that a file compiled
  /// with a different -march has packed, with panels of a different width. Call this before you read them.
  /// @throws ArgumentError unless panels are as wide in this file as in the file that packed them
  void expect_readable() const {
    expect(panel_columns_ == Tile<float>::columns, "Cpu::Context.use", "packed weights",
           Joined{"panels of ", Tile<float>::columns, " columns (compile freeze and infer with the same -march)"},
           panel_columns_);
  }

  /// Returns the packed copy, for products of operand type P, of the experts' weights at address w. Returns null if
  /// there is no such copy.
  template <class P>
  PackedMatrix<P> find(const SumOf<P>* w) const {
    for (const Entry& entry : entries_)
      if (entry.plain == w && entry.rounds == std::is_same_v<P, Bfloat16>) {
        const void* const packed = entry.packed.get();
        if (entry.format) return PackedMatrix<P>::of({static_cast<const std::byte*>(packed), entry.format});
        if (entry.half) return {nullptr, static_cast<const Bfloat16*>(packed), entry.half_tile};
        return {static_cast<const SumOf<P>*>(packed)};
      }
    return {};
  }

 private:
  struct Entry {
    const void* plain;
    std::shared_ptr<void> packed;
    HalfTile* half_tile;
    const QuantisedFormat* format;  // null if the weights are not quantised
    std::size_t bytes;
    bool half, rounds;
  };
  /// Returns the description of the packed copy of weights [E, depth, columns], without memory.
  template <class P>
  static Entry entry(const SumOf<P>* w, Index experts, Index depth, Index columns, Weights form) {
    using T = SumOf<P>;
    constexpr bool rounds = std::is_same_v<P, Bfloat16>;
    const bool half = values_of_word<P> == 1 && std::is_same_v<T, float> && (form == Weights::bfloat16 || rounds);
    const auto size = static_cast<std::size_t>(experts * PackedMatrix<P>::size(depth, columns));
    Entry made{w, nullptr, half_tile<P>(), nullptr, size * (half ? sizeof(Bfloat16) : sizeof(T)), half, rounds};
    if (!is_quantised(form)) return made;
    expect(std::is_same_v<T, float>, "freeze", "weights", "Weights::unchanged for parameters of double",
           "a form of 8 or 4 bits");
    if constexpr (std::is_same_v<T, float>) {
      made.format = quantised_format<T>(form);
      made.bytes = static_cast<std::size_t>(experts * QuantisedMatrix::size(depth, columns) * made.format->group_bytes);
      made.half = false;
    }
    return made;
  }
  /// Describes the bytes of an entry for float weights [E, depth, columns].
  static Panels order(const Entry& entry, Index experts, Index depth, Index columns) {
    static_assert(Panels::block == Tile<float>::depth && Panels::block == Tile<Bfloat16>::depth);
    const bool pairs = entry.rounds && !entry.half && !entry.format;
    const Weights form = entry.format          ? entry.format->form
                         : entry.half || pairs ? Weights::bfloat16
                                               : Weights::unchanged;
    const Index units = entry.format ? QuantisedMatrix::groups(depth) : pairs ? words<Bfloat16>(depth) : depth;
    return {form,    pairs,
            experts, depth,
            columns, Tile<float>::columns,
            units,   static_cast<const std::byte*>(entry.packed.get())};
  }
  /// Returns the address by which products find an entry of weights w (see `reserve`), and stores it in the entry.
  template <class P>
  static SumOf<P>* address_of(Entry& entry, SumOf<P>* w) {
    if (w) return w;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto address = reinterpret_cast<SumOf<P>*>(reinterpret_cast<std::uintptr_t>(entry.packed.get()) + 1);
    entry.plain = address;
    return address;
  }
  /// The weights that one call packs: columns [column, column + columns) of experts [expert, expert + experts).
  template <class T>
  struct Part {
    Operand<T> b;  // of the first expert; column 0 of b is column `column` of the packed matrix
    Index expert, experts, column, columns;
  };
  /// Packs a part of weights [E, depth, columns] into the memory of an entry.
  template <class P, class Context>
  static void pack(Context& ctx, const Entry& to, const Part<SumOf<P>>& part, Index depth, Index columns) {
    using T = SumOf<P>;
    using Matrix = PackedMatrix<P>;
    const Index size = Matrix::size(depth, columns), blocks = divide_up(depth, Tile<P>::depth);
    parallel_for(ctx.executor(), ctx.threads(), part.experts * blocks, [&](Index i, int) noexcept {
      const Index e = i / blocks, k = i % blocks * Tile<P>::depth, length = std::min(Tile<P>::depth, depth - k);
      Operand<T> b = part.b;
      b.data += e * depth * columns;
      if constexpr (std::is_same_v<T, float>)
        if (to.format) return quantise(b, to, part, part.expert + e, k, length, depth, columns);
      const Index at = (part.expert + e) * size + Matrix::at(columns, k, length, part.column);
      const Index panel = words<P>(length) * Tile<P>::columns;
      if (!to.half) return pack_panels<P>(b, 0, part.columns, k, length, static_cast<T*>(to.packed.get()) + at);
      alignas(64) T buffer[Tile<P>::depth * Tile<P>::columns];
      Bfloat16* halves = static_cast<Bfloat16*>(to.packed.get()) + at;
      for (Index j = 0; j < part.columns; j += Tile<P>::columns, halves += panel) {
        pack_panels<P>(b, j, std::min<Index>(Tile<P>::columns, part.columns - j), k, length, buffer);
        for (Index x = 0; x < panel; ++x) halves[x] = Bfloat16::from(static_cast<float>(buffer[x]));
      }
    });
  }
  /// Quantises rows k to k + length − 1 of a part of expert e's weights b [depth, columns].
  static void quantise(const Operand<float>& b, const Entry& to, const Part<float>& part, Index e, Index k,
                       Index length, Index depth, Index columns) {
    constexpr Index width = Tile<float>::columns, block = Tile<float>::depth;
    const Index at = e * QuantisedMatrix::size(depth, columns) + QuantisedMatrix::at(columns, k, length, part.column);
    auto* groups = static_cast<std::byte*>(to.packed.get()) + at * to.format->group_bytes;
    alignas(64) float panel[block * width];
    for (Index j = 0; j < part.columns; j += width) {
      pack_panels<float>(b, j, std::min(width, part.columns - j), k, length, panel);
      std::fill(panel + length * width, panel + QuantisedMatrix::groups(length) * group_size * width, 0.0F);
      for (Index g = 0; g < QuantisedMatrix::groups(length); ++g, groups += to.format->group_bytes)
        to.format->encode(panel + g * group_size * width, groups);
    }
  }
  /// Returns an entry with memory for the packed weights that `entry` describes. If the same weights already have an
  /// entry for this operand type, of the same size and form, returns that entry. An entry of another size or form is
  /// replaced.
  Entry& memory(Entry entry) {
    for (auto before = entries_.begin(); entry.plain && before != entries_.end(); ++before)
      if (before->plain == entry.plain && before->rounds == entry.rounds) {
        if (before->bytes == entry.bytes && before->half == entry.half && before->format == entry.format)
          return *before;
        entries_.erase(before);
        break;
      }
    entry.packed = {allocate(entry.bytes), &release};
    entries_.push_back(std::move(entry));
    return entries_.back();
  }
  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<std::byte>> kept_{};
  int panel_columns_ = Tile<float>::columns;
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
