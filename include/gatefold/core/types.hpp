#pragma once

#include <cstdint>
#include <limits>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// The type of sizes, offsets and expert ids. It has 64 bits, so that products of sizes, such as items · picks per item
/// · width, do not overflow.
using Index = std::int64_t;

/// The value of the option `ignore` if every label counts. `ignore` is the label that losses and metrics leave out.
inline constexpr Index ignore_none = std::numeric_limits<Index>::min();

/// Returns ⌈a / b⌉ for a >= 0 and b > 0. The sum a + b - 1 must not overflow.
template <class A, class B>
GATEFOLD_HD constexpr auto divide_up(A a, B b) {
  return (a + b - 1) / b;
}

/// Returns a hash of a 64-bit number. Different numbers have different hashes (finaliser of splitmix64, Steele et al.
/// 2014).
GATEFOLD_HD constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// The seed of a stream of random numbers. `fork(k)` returns the seed of an independent stream, for example of part,
/// layer or step number k.
struct Seed {
  std::uint64_t value = 0;

  GATEFOLD_HD constexpr Seed fork(std::uint64_t k) const { return {mix64(value ^ mix64(k + 1))}; }
  friend constexpr bool operator==(const Seed&, const Seed&) = default;
};

/// A seed and the number of a step, which together select a stream of random numbers. The same seed and step give the
/// same numbers. Noise, the extra input of policies that draw random numbers (for example dropout), can contain a
/// Random.
struct Random {
  Seed seed{};
  std::uint64_t step = 0;

  GATEFOLD_HD constexpr Random at(Index layer) const { return {seed.fork(static_cast<std::uint64_t>(layer)), step}; }
};

}  // namespace gatefold

namespace gatefold::detail_ {

template <class T>
GATEFOLD_UNIQUE_OF_TYPE inline char type_mark = 0;  // not const, because linkers can merge constants (see type_id)

/// Returns the identity of a type at run time, without RTTI: two identities are equal if and only if the types are the
/// same.
///
/// The identity is the address of a variable that stays writable. Linkers merge identical read-only data and identical
/// functions (link.exe /OPT:ICF, lld --icf=all --ignore-data-address-equality, gold --icf=all), so the address of a
/// constant or of a function is not unique to a type. No linker merges writable variables.
///
/// Shared objects of one process agree on the identity of a type unless the type has hidden visibility.
template <class T>
const void* type_id() {
  return &type_mark<T>;
}

}  // namespace gatefold::detail_
