// Products of a warpgroup: wgmma.mma_async. Its four warps issue a product, which is finished later.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// The content of an accumulator register between the issue of a product and the wait for it: a NaN that encodes the
/// product and the element. Compilers may copy such registers before their values may be used.
struct Promise {
  static constexpr std::uint32_t mark = 0xffd00000, mark_bits = 0xfff00000;
  static constexpr std::uint32_t elements = 128 * warp_size;  // elements of one warp: registers with 32 lanes each
  static constexpr std::uint32_t numbers =
      (~mark_bits + 1) / elements;  // the largest number of unfinished products, plus one

  static std::uint32_t of(std::uint64_t number, std::size_t element) {
    return mark | static_cast<std::uint32_t>(number % numbers) * elements | static_cast<std::uint32_t>(element);
  }
  static bool is(std::uint32_t bits) { return (bits & mark_bits) == mark; }
  static std::size_t element(std::uint32_t bits) { return bits % elements; }

  /// Returns how many products earlier than product `number` the promised product was issued.
  static std::uint64_t age(std::uint32_t bits, std::uint64_t number) {
    return (number - (bits & ~mark_bits) / elements) % numbers;
  }
};

/// A product D = A B + D with 64 x columns numbers; 16 rows belong to each warp.
struct Product {
  const Instruction* in = nullptr;
  std::uint64_t a = 0, b = 0;  // descriptors
  bool accumulates = false;
  std::uint32_t issued = 0, collected = 0;  // one bit per warp
  bool finished = false;
  std::uint32_t read = 0;           // the segment after the one in which shared memory was read
  std::vector<std::uint32_t> d[4];  // for each warp: accumulator registers with 32 lanes each
};

struct Warpgroup {
  static constexpr std::uint32_t warps = 4, all = 15;

  std::deque<Product> products;  // products that some warp has not collected yet
  std::uint64_t first = 0;       // number of the first of these products

  Product& operator[](std::uint64_t number) { return products[number - first]; }
  std::uint64_t end() const { return first + products.size(); }

  /// Returns the value that the promise `bits` in a register of a warp stands for. The age of the promise is counted
  /// from the later product `number`. Returns `bits` if they are not a promise or its product is not finished.
  std::uint32_t kept(std::uint32_t bits, std::uint64_t number, std::uint32_t warp) const {
    const std::uint64_t age = Promise::age(bits, number);
    if (!Promise::is(bits) || age == 0 || age > number - first) return bits;
    const Product& product = products[number - age - first];
    const std::size_t element = Promise::element(bits);
    return product.finished && element < product.d[warp].size() ? product.d[warp][element] : bits;
  }
};

}  // namespace gatefold::cuda_emulator
