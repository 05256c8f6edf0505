#include "gatefold/io/tensor_pieces.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;
using io::MapEntry;
using io::tensor_map::Piece;
using Shape = std::vector<std::uint64_t>;

TEST_CASE("pieces: each expert has its own transposed tensor") {
  const auto list = io::tensor_map::pieces({"w", "e.{}.w", MapEntry::transposed}, {3, 4, 5}, "here");
  REQUIRE(list.size() == 3);
  CHECK(list[2].name == "e.2.w");
  CHECK(list[2].shape == Shape{5, 4});
  CHECK(list[2].offset == 40);
  CHECK(list[2].count == 20);
  CHECK(list[2].rows == 4);
  CHECK(list[2].columns == 5);
  CHECK(list[2].run == 20);
}

TEST_CASE("pieces: runs of parts follow the layout of the file") {
  const auto run = [](MapEntry::Layout layout, bool interleaved) {
    const auto list = io::tensor_map::pieces({"up", "gu", layout, 1, 2, false, interleaved}, {3, 4, 5}, "here");
    REQUIRE(list.size() == 1);
    CHECK(list[0].shape == (layout == MapEntry::transposed ? Shape{3, 10, 4} : Shape{3, 4, 10}));
    CHECK(list[0].part == 1);
    CHECK(list[0].parts == 2);
    return list[0].run;
  };
  CHECK(run(MapEntry::as_it_is, false) == 5);     // the outputs of one input
  CHECK(run(MapEntry::as_it_is, true) == 1);      // one output
  CHECK(run(MapEntry::transposed, false) == 20);  // all rows of one part
  CHECK(run(MapEntry::transposed, true) == 4);    // one row
}

TEST_CASE("pieces: one_expert removes the extent of the experts") {
  const auto list = io::tensor_map::pieces({.ours = "b", .theirs = "b", .one_expert = true}, {1, 6}, "here");
  CHECK(list[0].shape == Shape{6});
  CHECK_THROWS_WITH_AS(io::tensor_map::pieces({.ours = "b", .theirs = "b", .one_expert = true}, {2, 6}, "here"),
                       "here: map: b: expected 1 expert, because one_expert is set, got 2", ArgumentError);
}

TEST_CASE("transpose: exchanges rows and columns of each matrix") {
  const std::vector<int> from{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  std::vector<int> to(12);
  io::tensor_map::transpose(from.data(), 2, 3, from.size(), to.data());
  CHECK(to == std::vector<int>{1, 4, 2, 5, 3, 6, 11, 14, 12, 15, 13, 16});
}

namespace {

struct Pack {
  Tensor<float, 2, Cpu> a{2, 3};
  Tensor<float, 1, Cpu> b{2};
  GATEFOLD_PACK(a, b)
};

}  // namespace

TEST_CASE("for_each_stored: gives the names of the other library") {
  const Pack pack;
  std::string names;
  io::for_each_stored({{"a", "x.{}"}, {"b", "y"}}, pack, [&](const std::string& name) { names += name + ' '; });
  CHECK(names == "x.0 x.1 y ");
  CHECK_THROWS_AS(io::for_each_stored({{"a", "x"}}, pack, [](const std::string&) {}), ArgumentError);
}
