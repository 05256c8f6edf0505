#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/types.hpp"

/// Operands of a product in the order in which the register tile reads them.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// to[r, c] = row r0 + r, column c0 + c of the operand's memory.
template <class T>
void copy_block(const Operand<T>& from, Index r0, Index rows, Index c0, Index columns, T* to, Index stride) {
  constexpr Index size = Register<T>::size;
  for (Index r = 0; r < rows; ++r, to += stride) {
    const T* source = from.at(r0 + r, c0);
    Index c = 0;
    for (; c + size <= columns; c += size) Register<T>::load(source + c).store(to + c);
    for (; c < columns; ++c) to[c] = source[c];
  }
}

/// to[c, r] = row r0 + r, column c0 + c of the operand's memory.
template <class T>
void transpose_block(const Operand<T>& from, Index r0, Index rows, Index c0, Index columns, T* to, Index stride) {
  using Packet = typename Register<T>::Packet;
  constexpr int size = Register<T>::size, worth = (size + 1) / 2;  // columns worth a transposition of registers
  Index r = 0;
  for (; r + size <= rows; r += size) {
    const T* source[size];
    for (int i = 0; i < size; ++i) source[i] = from.at(r0 + r + i, c0);
    Index c = 0;
    for (; c + worth <= columns; c += size) {
      const int count = static_cast<int>(columns - c < size ? columns - c : size);
      Packet block[size];
      for (int i = 0; i < size; ++i) block[i] = Register<T>::load(source[i] + c, count).packet();
      packet::transpose<T>(block);
      for (int i = 0; i < count; ++i) packet::store(to + (c + i) * stride + r, block[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < size; ++i) to[c * stride + r + i] = source[i][c];
  }
  const int left = static_cast<int>(rows - r);
  for (int i = 0; i < left; ++i) {
    const T* source = from.at(r0 + r + i, c0);
    for (Index c = 0; c < columns; ++c) to[c * stride + r + i] = source[c];
  }
}

/// Rows of A for the register tile: to[i, k] with rows Tile::stride apart.
template <class T>
void pack_rows(const Operand<T>& a, Index line, Index lines, Index k, Index depth, T* to) {
  a.lines_are_rows ? copy_block(a, line, lines, k, depth, to, Tile<T>::stride)
                   : transpose_block(a, k, depth, line, lines, to, Tile<T>::stride);
}

/// Columns of B for the register tile: consecutive panels [depth, Tile::columns], the last one filled up with zeros.
template <class T>
void pack_panels(const Operand<T>& b, Index line, Index lines, Index k, Index depth, T* to) {
  constexpr Index width = Tile<T>::columns, group = tuning.copied_rows;
  const Index whole = lines / width * width, panel = depth * width;
  if (b.lines_are_rows) {
    for (Index j = 0; j < whole; j += width) transpose_block(b, line + j, width, k, depth, to + j * depth, width);
  } else {
    // A few rows at a time, so that memory is read in long runs.
    for (Index x = 0; x < depth; x += group)
      for (Index j = 0; j < whole; j += width)
        copy_block(b, k + x, depth - x < group ? depth - x : group, line + j, width, to + j * depth + x * width, width);
  }
  if (whole == lines) return;
  T* last = to + whole * depth;
  for (Index i = 0; i < panel; ++i) last[i] = 0;
  b.lines_are_rows ? transpose_block(b, line + whole, lines - whole, k, depth, last, width)
                   : copy_block(b, k, depth, line + whole, lines - whole, last, width);
}

/// Rows of a panel [depth, Tile::columns] that comes next, copied one at a time while a tile computes: they cost it
/// little more than the memory they come from. A tile copies depth / 2 rows at most.
template <class T>
struct PanelCopy {
  const T* from = nullptr;
  Index stride = 0;  // elements from row to row
  T* to = nullptr;
  Index rows = 0;
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
