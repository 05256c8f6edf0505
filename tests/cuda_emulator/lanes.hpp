// Applies a function to the registers of the lanes of a warp.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

inline constexpr std::uint32_t all_lanes = 0xffffffff;

/// The number of bytes of a cell (the place of one lane in a row of registers, see ptx.hpp) that holds a T.
template <class T>
inline constexpr std::size_t cell_bytes = sizeof(T) <= 4 ? 4 : 8;

template <class T>
T read_lane(const char* row, int lane, std::size_t stride = cell_bytes<T>) {
  T value;
  std::memcpy(&value, row + lane * stride, sizeof value);
  return value;
}

/// Writes the whole cell. A value narrower than 32 bits is extended with zeros.
template <class T>
void write_lane(char* row, int lane, T value) {
  if constexpr (sizeof(T) < 4) {
    std::uint32_t cell = 0;
    std::memcpy(&cell, &value, sizeof value);
    std::memcpy(row + lane * 4, &cell, 4);
  } else {
    std::memcpy(row + lane * sizeof value, &value, sizeof value);
  }
}

inline int count_lanes(std::uint32_t lanes) { return lanes == all_lanes ? warp_size : std::popcount(lanes); }

/// Calls f(lane) for every lane of a mask. The code contains only one call of f, because compilers do not inline a
/// function that is called at two places.
template <class F>
void for_lanes(std::uint32_t lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

/// Computes d = f(s...) for the operands [0] and [1]... of an instruction. The results of a full warp first go to a
/// separate array, so that destination and sources cannot overlap and the compiler can vectorise.
template <class D, class... S, class F>
void map_lanes(char* registers, const Instruction& in, std::uint32_t lanes, F f) {
  char* destination = registers + in[0].row;
  const auto parts = [&]<std::size_t... i>(std::index_sequence<i...>) {
    if (lanes == all_lanes) {
      alignas(64) char result[warp_size * cell_bytes<D>];
      for (int lane = 0; lane < warp_size; ++lane) {
        write_lane<D>(result, lane, f(read_lane<S>(registers + in[1 + i].row, lane)...));
      }
      std::memcpy(destination, result, sizeof result);
    } else {
      for_lanes(lanes, [&](int lane) {
        write_lane<D>(destination, lane, f(read_lane<S>(registers + in[1 + i].row, lane)...));
      });
    }
  };
  parts(std::index_sequence_for<S...>());
}

/// Returns the lanes for which f(s...) is true. The operands s begin at `first`.
template <class... S, class F>
std::uint32_t select_lanes(const char* registers, const Instruction& in, std::size_t first, std::uint32_t lanes, F f) {
  std::uint32_t selected = 0;
  const auto parts = [&]<std::size_t... i>(std::index_sequence<i...>) {
    for_lanes(lanes, [&](int lane) {
      selected |= static_cast<std::uint32_t>(f(read_lane<S>(registers + in[first + i].row, lane)...)) << lane;
    });
  };
  parts(std::index_sequence_for<S...>());
  return selected;
}

inline std::uint32_t read_predicate(const char* registers, const Operand& operand) {
  const auto bits = read_lane<std::uint32_t>(registers + operand.row, 0);
  return operand.negated ? ~bits : bits;
}

inline void write_predicate(char* registers, const Operand& operand, std::uint32_t bits, std::uint32_t lanes) {
  const auto old = read_lane<std::uint32_t>(registers + operand.row, 0);
  write_lane(registers + operand.row, 0, (old & ~lanes) | (bits & lanes));
}

}  // namespace gatefold::cuda_emulator
