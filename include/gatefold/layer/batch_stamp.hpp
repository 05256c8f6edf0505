#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Tells what forward saved of one batch from what it saved of another: of another size by the extents of its x, of the
/// same size, on host backends in builds with assertions, by a hash of the items that forward saw.
/// @cost  one pass over the items for the hash; nothing where NDEBUG is defined
struct BatchStamp {
  std::uint64_t hash = 0;      // 0: not taken
  Index items = 0, width = 0;  // of x; ids are 1 wide

  template <class T, int Rank, class B>
  void take(View<const T, Rank, B> x) {
    hash = of(x);
    items = x.extent(0);
    width = width_of(x);
  }
  /// @throws ArgumentError unless these are the items of take
  template <class T, int Rank, class B>
  void expect_same(const char* where, View<const T, Rank, B> x) const {
    const Index taken[] = {items, width};
    expect_extents(where, "saved: x of forward", taken, 2, true, {x.extent(0), width_of(x)});
    const std::uint64_t now = hash == 0 ? 0 : of(x);
    expect(now == 0 || now == hash, where, "saved", "what forward kept of this x",
           "that of another batch, or of an x that has changed since");
  }

 private:
  template <class T, int Rank, class B>
  static Index width_of(View<const T, Rank, B> x) {
    return Rank > 1 ? x.extent(Rank - 1) : 1;
  }
  template <class T, int Rank, class B>
  static std::uint64_t of([[maybe_unused]] View<const T, Rank, B> x) {
    std::uint64_t h = 0;
#ifndef NDEBUG
    if constexpr (B::is_host) {
      const char* bytes = reinterpret_cast<const char*>(x.data());
      const std::size_t count = static_cast<std::size_t>(x.size()) * sizeof(T);
      h = mix64(count);
      std::uint64_t word = 0;
      for (std::size_t i = 0; i < count / sizeof word; ++i) {
        std::memcpy(&word, bytes + i * sizeof word, sizeof word);
        h = after(h, word);
      }
      if (const std::size_t rest = count % sizeof word) {
        word = 0;
        std::memcpy(&word, bytes + (count - rest), rest);
        h = after(h, word);
      }
      h |= 1;
    }
#endif
    return h;
  }
  static std::uint64_t after(std::uint64_t h, std::uint64_t word) {
    return std::rotl(h ^ word, 23) * 0x9e3779b97f4a7c15u;
  }
};

}  // namespace gatefold
