#include "gatefold/core/types.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <type_traits>

#include "gatefold/core/bfloat16.hpp"

using namespace gatefold;

namespace {

/// Returns the inverse of an odd number modulo 2^64, computed by Newton's iteration.
std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
  return x;
}
std::uint64_t unshift(std::uint64_t z, int by) {
  std::uint64_t v = z;
  for (int bits = by; bits < 64; bits += by) v = z ^ (v >> by);
  return v;
}
std::uint64_t unmix64(std::uint64_t z) {
  z = unshift(z, 31) * inverse(0x94d049bb133111ebull);
  z = unshift(z, 27) * inverse(0xbf58476d1ce4e5b9ull);
  return unshift(z, 30) - 0x9e3779b97f4a7c15ull;
}

}  // namespace

TEST_CASE("divide_up: rounds up in the common type of both arguments") {
  static_assert(std::is_same_v<decltype(divide_up(1, 1)), int> &&
                std::is_same_v<decltype(divide_up(Index(1), 1)), Index>);
  CHECK(divide_up(0, 4) == 0);
  CHECK(divide_up(8, 4) == 2);
  CHECK(divide_up(9, 4) == 3);
}

TEST_CASE("Index: has 64 bits and a sign") { static_assert(std::is_signed_v<Index> && sizeof(Index) == 8); }

TEST_CASE("mix64: returns the published numbers of splitmix64") {
  const std::uint64_t golden = 0x9e3779b97f4a7c15ull;
  CHECK(mix64(0) == 0xe220a8397b1dcdafull);
  CHECK(mix64(golden) == 0x6e789e6aa1b965f4ull);
  CHECK(mix64(2 * golden) == 0x06c45d188009454full);
  CHECK(mix64(3 * golden) == 0xf88bb8a8724c81ecull);
}

TEST_CASE("mix64: is bijective") {
  std::uint64_t v = 1;
  for (int i = 0; i < 10000; ++i) {
    CHECK(unmix64(mix64(v)) == v);
    v = v * 6364136223846793005ull + 1442695040888963407ull;
  }
  for (const std::uint64_t edge : {std::uint64_t(0), ~std::uint64_t(0), std::uint64_t(1) << 63})
    CHECK(unmix64(mix64(edge)) == edge);
}

TEST_CASE("Seed: forks are distinct, and their order matters") {
  std::set<std::uint64_t> seen;
  Index forks = 0;
  for (const std::uint64_t parent : {std::uint64_t(0), std::uint64_t(1), ~std::uint64_t(0)}) {
    seen.insert(parent);
    ++forks;
    for (std::uint64_t k = 0; k < 10000; ++k, ++forks) seen.insert(Seed{parent}.fork(k).value);
  }
  CHECK(static_cast<Index>(seen.size()) == forks);
  CHECK(Seed{7}.fork(1).fork(2) != Seed{7}.fork(2).fork(1));
  CHECK(Seed{7}.fork(3) == Seed{7}.fork(3));
}

TEST_CASE("Random: at(layer) forks the seed and keeps the step") {
  const Random random{Seed{5}, 17};
  CHECK(random.at(2).seed == Seed{5}.fork(2));
  CHECK(random.at(2).step == 17);
  CHECK(random.at(0).seed != random.seed);
}

namespace {

struct Empty {};
struct AlsoEmpty {};
using gatefold::detail_::type_id;

/// Not inline, so that the comparison reads the addresses from memory, as for an AnyTensor.
[[gnu::noinline]] std::set<const void*> of_five_types() {
  struct Local {};
  return {type_id<float>(), type_id<double>(), type_id<gatefold::Index>(), type_id<gatefold::Bfloat16>(),
          type_id<Local>()};
}

}  // namespace

// The CMake preset `test` runs this file too, because that preset links with --icf=all.
TEST_CASE("type_id: different types have different identities") {
  std::set<const void*> ids = of_five_types();
  CHECK(ids.size() == 5);
  ids.insert({type_id<Empty>(), type_id<AlsoEmpty>(), type_id<const Empty>(), type_id<Empty*>()});
  CHECK(ids.size() == 9);
}

TEST_CASE("type_id: one type has one identity") {
  CHECK(type_id<float>() == type_id<float>());
  const std::set<const void*> ids = of_five_types();
  CHECK(ids == of_five_types());
  CHECK(ids.count(type_id<double>()) == 1);
}
