#include "gatefold/tensor/expect_shape.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

template <class V>
std::string message_of(const char* where, const char* name, const V& view, std::initializer_list<Index> expected) {
  try {
    expect_shape(where, name, view, expected);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

template <int Rank, class... I>
View<const float, Rank, Cpu> shaped(I... extents) {
  static const float memory = 0;  // never read
  return {&memory, extents...};
}

}  // namespace

TEST_CASE("expect_shape: equal extents pass; any_extent accepts any extent") {
  CHECK(message_of("f", "x", shaped<2>(32, 512), {32, 512}) == "");
  CHECK(message_of("f", "x", shaped<2>(32, 512), {any_extent, 512}) == "");
  CHECK(message_of("f", "x", shaped<2>(0, 512), {any_extent, 512}) == "");
  CHECK(message_of("f", "x", shaped<4>(1, 2, 3, 4), {1, any_extent, any_extent, 4}) == "");
  CHECK(message_of("f", "x", shaped<1>(0), {0}) == "");
}

TEST_CASE("expect_shape: the message names place, argument and both shapes") {
  CHECK(message_of("Mixture.forward", "x", shaped<2>(32, 256), {any_extent, 512}) ==
        "Mixture.forward: x: expected [?, 512], got [32, 256]");
  CHECK(message_of("CrossEntropy", "target", shaped<1>(3), {4}) == "CrossEntropy: target: expected [4], got [3]");
  CHECK(message_of("f", "w", shaped<3>(2, 3, 4), {2, 4, 3}) == "f: w: expected [2, 4, 3], got [2, 3, 4]");
  CHECK(message_of("f", "x", shaped<2>(Index(1) << 40, 0), {Index(1) << 41, any_extent}) ==
        "f: x: expected [2199023255552, ?], got [1099511627776, 0]");
}

TEST_CASE("expect_shape: every extent is compared") {
  for (int wrong = 0; wrong < 4; ++wrong) {
    Index extent[4] = {5, 6, 7, 8};
    ++extent[wrong];
    CAPTURE(wrong);
    CHECK(message_of("f", "x", shaped<4>(extent[0], extent[1], extent[2], extent[3]), {5, 6, 7, 8}) != "");
  }
}

TEST_CASE("expect_shape: another number of dimensions throws") {
  CHECK(message_of("f", "x", shaped<2>(3, 4), {3}) == "f: x: expected [3], got [3, 4]");
  CHECK(message_of("f", "x", shaped<1>(3), {3, 4}) == "f: x: expected [3, 4], got [3]");
  CHECK(message_of("f", "x", shaped<4>(1, 2, 3, 4), {}) == "f: x: expected [], got [1, 2, 3, 4]");
}

TEST_CASE("expect_shape: accepts tensors like views") {
  const Tensor<double, 2, Cpu> x(2, 3);
  CHECK(message_of("f", "x", x, {2, 3}) == "");
  CHECK(message_of("f", "x", x, {3, 2}) == "f: x: expected [3, 2], got [2, 3]");
}

TEST_CASE("expect_shape: negative extents throw, also with any_extent") {
  CHECK(message_of("f", "x", shaped<2>(-1, 512), {any_extent, 512}) == "f: x: expected [?, 512], got [-1, 512]");
  CHECK(message_of("f", "x", shaped<2>(-4, 8), {any_extent, any_extent}) == "f: x: expected [?, ?], got [-4, 8]");
}

TEST_CASE("expect_shape: a nonempty view without memory throws") {
  CHECK(message_of("f", "x", View<const float, 2, Cpu>(nullptr, 3, 4), {any_extent, 4}) ==
        "f: x: expected memory of 12 elements, got a null pointer");
  CHECK(message_of("f", "x", View<const float, 2, Cpu>(nullptr, 0, 4), {any_extent, 4}) == "");
  CHECK(message_of("f", "x", View<const float, 2, Cpu>(nullptr, 0, 5), {any_extent, 4}) ==
        "f: x: expected [?, 4], got [0, 5]");
  CHECK(message_of("f", "x", Tensor<float, 2, Cpu>(), {0, 0}) == "");
}

TEST_CASE("expect_apart: refuses any shared element") {
  float memory[12] = {};
  const auto message = [&](Index out, Index out_rows, Index in, Index in_rows) {
    try {
      expect_apart("f", "y", View<float, 2, Cpu>(memory + out, out_rows, 2), "x",
                   View<const float, 2, Cpu>(memory + in, in_rows, 2));
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string shared = "f: y: expected memory that does not overlap x, got memory of x";
  CHECK(message(0, 3, 6, 3) == "");
  CHECK(message(6, 3, 0, 3) == "");
  CHECK(message(0, 3, 0, 3) == shared);
  CHECK(message(0, 3, 5, 3) == shared);  // the last element of y
  CHECK(message(5, 3, 0, 3) == shared);
  CHECK(message(0, 6, 4, 1) == shared);  // one inside the other
  CHECK(message(4, 1, 0, 6) == shared);
  CHECK(message(2, 0, 0, 6) == "");  // an empty view shares no memory
}
