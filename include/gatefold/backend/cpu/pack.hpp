#pragma once

#include <cstddef>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Packs operands of matrix products: copies them in the order in which the innermost loop of a product reads them. The
/// elements of packed operands are called words (words.hpp).
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Copies words (elements of packed operands) to a matrix: to[r, c] = word c of row r of `from`.
template <class T, class Rows>
void copy_block(const Rows& from, Index rows, Index columns, T* to, Index stride) {
  constexpr int size = Register<T>::size;
  for (Index r = 0; r < rows; ++r, to += stride) {
    const auto source = from[r];
    Index c = 0;
    for (; c + size <= columns; c += size) source.load(c, size).store(to + c);
    if (const int left = static_cast<int>(columns - c); left > 0) source.load(c, left).store(to + c, left);
  }
}

/// Copies words (elements of packed operands) to a transposed matrix: to[c, r] = word c of row r of `from`.
/// @param ahead  if not 0, each read of words also prefetches the memory that is this many elements later
template <class T, class Rows>
[[gnu::noinline]] void transpose_block(const Rows& from, Index rows, Index columns, T* to, Index stride,
                                       Index ahead = 0) {
  using Packet = typename Register<T>::Packet;
  // Fewer columns than `worth` are copied word by word. For more columns, a transposition in vector registers is
  // faster.
  constexpr int size = Register<T>::size, worth = (size + 1) / 2;
  Index r = 0;
  for (; r + size <= rows; r += size) {
    decltype(from[r]) source[std::size_t{size}];
    for (int i = 0; i < size; ++i) source[i] = from[r + i];
    Index c = 0;
    for (; c + worth <= columns; c += size) {
      const int count = static_cast<int>(columns - c < size ? columns - c : size);
      Packet block[std::size_t{size}];
      if constexpr (requires { source[0].prefetch(c, ahead); })
        for (int i = 0; ahead && i < size; ++i) source[i].prefetch(c, ahead);
      for (int i = 0; i < size; ++i) block[i] = source[i].load(c, count).packet();
      packet::transpose<T>(block);
      for (int i = 0; i < count; ++i) packet::store(to + (c + i) * stride + r, block[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < size; ++i) to[c * stride + r + i] = source[i].word(c);
  }
  const int left = static_cast<int>(rows - r);
  for (int i = 0; i < left; ++i) {
    const auto source = from[r + i];
    for (Index c = 0; c < columns; ++c) to[c * stride + r + i] = source.word(c);
  }
}

/// Packs rows of the left factor A of a product. to[i, w] is word number w (packed element) of row line + i. Word 0
/// begins with column k. Rows of `to` are Tile::stride elements apart.
template <class P>
void pack_rows(const Operand<SumOf<P>>& a, Index line, Index lines, Index k, Index depth, SumOf<P>* to) {
  a.lines_are_rows ? copy_block(LinesOfWords<P>{a, line, k, depth}, lines, words<P>(depth), to, Tile<P>::stride)
                   : transpose_block(RowsOfWords<P>{a, line, k, depth}, words<P>(depth), lines, to, Tile<P>::stride);
}

/// Packs columns of the right factor B of a product into consecutive panels of Tile::columns columns. A panel has the
/// shape [words, Tile::columns], and the last panel is padded with zeros.
template <class P>
void pack_panels(const Operand<SumOf<P>>& b, Index line, Index lines, Index k, Index depth, SumOf<P>* to) {
  constexpr Index width = Tile<P>::columns, group = tuning.copied_rows;
  const Index rows = words<P>(depth), whole = lines / width * width, panel = rows * width;
  if (b.lines_are_rows) {
    // While transpose_block transposes a group of columns of B, it prefetches the next group, because the next group is
    // far away in memory.
    const Index ahead = b.rows ? 0 : Register<SumOf<P>>::size * b.stride;
    for (Index j = 0; j < whole; j += width)
      transpose_block(LinesOfWords<P>{b, line + j, k, depth}, width, rows, to + j * rows, width, ahead);
  } else {
    // Copies a few rows of B to all panels before it reads the next rows, because this reads memory in long runs.
    for (Index x = 0; x < rows; x += group)
      for (Index j = 0; j < whole; j += width)
        copy_block(RowsOfWords<P>{b, line + j, k, depth}.from_row(x), rows - x < group ? rows - x : group, width,
                   to + j * rows + x * width, width);
  }
  if (whole == lines) return;
  SumOf<P>* last = to + whole * rows;
  for (Index i = 0; i < panel; ++i) last[i] = 0;
  b.lines_are_rows ? transpose_block(LinesOfWords<P>{b, line + whole, k, depth}, lines - whole, rows, last, width)
                   : copy_block(RowsOfWords<P>{b, line + whole, k, depth}, rows, lines - whole, last, width);
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
