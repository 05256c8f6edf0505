// ldmatrix and mma: operations on matrices that are distributed over the lanes of a warp. The names of the layouts are
// those of the PTX ISA: lane = 4 * group + thread in the group.
#include <bit>
#include <cstring>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/tensor_core.hpp"

namespace gatefold::cuda_emulator {
namespace {

std::uint16_t half(std::uint32_t pair, int i) { return static_cast<std::uint16_t>(pair >> 16 * i); }

}  // namespace

/// Executes ldmatrix. The operands are [1, 2 or 4 registers, address]. Lane 8 i + r gives the address of row r of
/// matrix i, which has 8 x 8 numbers.
void Warp::load_matrix(const Instruction& in) {
  const int matrices = in.elements;
  const bool transposed = in.mode;
  Places rows;
  locate(in, {in[in.elements], in.offset, in.space, 16, false}, all_lanes >> (warp_size - 8 * matrices), rows);
  std::uint16_t matrix[4][8][8];
  for (int i = 0; i < matrices; ++i) {
    for (int row = 0; row < 8; ++row) std::memcpy(matrix[i][row], rows[8 * i + row], 16);
  }
  for (int i = 0; i < matrices; ++i) {
    for (int lane = 0; lane < warp_size; ++lane) {
      const int group = lane / 4, first = lane % 4 * 2;
      auto number = [&](int j) { return std::uint32_t{transposed ? matrix[i][j][group] : matrix[i][group][j]}; };
      write(in[static_cast<std::size_t>(i)], lane, number(first) | number(first + 1) << 16);
    }
  }
}

/// Executes mma, a product of 16 x depth and depth x 8. The operands are [4 of d, depth / 4 of a, depth / 8 of b, 4 of
/// c].
void Warp::multiply_matrices(const Instruction& in) {
  const int depth = in.elements;
  const auto a_begin = std::size_t{4}, b_begin = a_begin + in.elements / 4, c_begin = b_begin + in.elements / 8;
  auto registers = [&](std::size_t i, int lane) {
    return read_lane<std::uint32_t>(registers_.get() + in[i].row, lane);
  };
  TensorCore::Row a[16];
  TensorCore::Columns b;
  for (int lane = 0; lane < warp_size; ++lane) {
    const int group = lane / 4;
    for (std::size_t i = a_begin; i < c_begin; ++i) {
      const std::uint32_t pair = registers(i, lane);
      for (int j = 0; j < 2; ++j) {
        const int k = lane % 4 * 2 + j, of_a = static_cast<int>(i - a_begin), of_b = static_cast<int>(i - b_begin);
        const Factor factor({half(pair, j)});
        if (i < b_begin) {
          a[group + of_a % 2 * 8].set(k + of_a / 2 * 8, 0, factor);
        } else {
          b.set(k + of_b * 8, group, factor);
        }
      }
    }
  }
  const TensorCore core = TensorCore::of(options().compute_capability);
  TensorCore::Sums d[16];
  // Calls f(number, register of four, lane) for all numbers of C and D.
  const auto for_numbers = [&](auto f) {
    for (int row = 0; row < 16; ++row) {
      for (int j = 0; j < TensorCore::columns; ++j) {
        f(d[row][j], static_cast<std::size_t>(row / 8 * 2 + j % 2), row % 8 * 4 + j / 2);
      }
    }
  };
  for_numbers(
      [&](float& number, std::size_t i, int lane) { number = std::bit_cast<float>(registers(c_begin + i, lane)); });
  for (int row = 0; row < 16; ++row) core.multiply_add(a[row], b, depth, d[row]);
  for_numbers([&](float number, std::size_t i, int lane) { write(in[i], lane, std::bit_cast<std::uint32_t>(number)); });
}

/// @returns false if the warp waits for other warps, at `pc`
bool Warp::execute_together(const Instruction& in, std::uint32_t pc) {
  switch (in.op) {
    case Opcode::load_matrix:
      load_matrix(in);
      return true;
    case Opcode::multiply_matrices:
      multiply_matrices(in);
      return true;
    case Opcode::product_fence:
      products_fenced_ = true;
      return true;
    case Opcode::product:
      issue_product(in);
      return true;
    case Opcode::product_commit:
      committed_.push_back(issued_);
      return true;
    default:
      return wait_for_products(in, pc);
  }
}

}  // namespace gatefold::cuda_emulator
