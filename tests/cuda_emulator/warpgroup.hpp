// Products of a warpgroup: wgmma.mma_async, issued by its four warps and finished behind their backs.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// What a register of an accumulator holds from the issue of a product to the wait for it: a NaN that says which
/// element of which product it stands for, as a compiler may copy registers that nobody may use yet.
struct Promise {
  static constexpr std::uint32_t mark = 0xffd00000, mark_bits = 0xfff00000;
  static constexpr std::uint32_t elements = 128 * warp_size;             // of one warp: registers of 32 lanes each
  static constexpr std::uint32_t numbers = (~mark_bits + 1) / elements;  // products that may be under way, and one

  static std::uint32_t of(std::uint64_t number, std::size_t element) {
    return mark | static_cast<std::uint32_t>(number % numbers) * elements | static_cast<std::uint32_t>(element);
  }
  static bool is(std::uint32_t bits) { return (bits & mark_bits) == mark; }
  static std::size_t element(std::uint32_t bits) { return bits % elements; }

  /// How many products before `number` the promised one was issued.
  static std::uint64_t age(std::uint32_t bits, std::uint64_t number) {
    return (number - (bits & ~mark_bits) / elements) % numbers;
  }
};

/// D = A B + D of 64 x columns numbers, 16 rows in each warp.
struct Product {
  const Instruction* in = nullptr;
  std::uint64_t a = 0, b = 0;  // descriptors
  bool accumulates = false;
  std::uint32_t issued = 0, collected = 0;  // bits of warps
  bool finished = false;
  std::uint32_t read = 0;           // the segment after that in which shared memory was read
  std::vector<std::uint32_t> d[4];  // by warp: registers of the accumulator, of 32 lanes each
};

struct Warpgroup {
  static constexpr std::uint32_t warps = 4, all = 15;

  std::deque<Product> products;  // that some warp has not collected yet
  std::uint64_t first = 0;       // number of the first of them

  Product& operator[](std::uint64_t number) { return products[number - first]; }
  std::uint64_t end() const { return first + products.size(); }

  /// What a promise in a register of a warp stands for, seen from the issue of product `number`; itself where it is
  /// none, or not kept yet.
  std::uint32_t kept(std::uint32_t bits, std::uint64_t number, std::uint32_t warp) const {
    const std::uint64_t age = Promise::age(bits, number);
    if (!Promise::is(bits) || age == 0 || age > number - first) return bits;
    const Product& product = products[number - age - first];
    const std::size_t element = Promise::element(bits);
    return product.finished && element < product.d[warp].size() ? product.d[warp][element] : bits;
  }
};

}  // namespace gatefold::cuda_emulator
