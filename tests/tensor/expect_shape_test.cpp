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
  return {nullptr, extents...};
}

}  // namespace

TEST_CASE("equal extents pass, any_extent fits everything") {
  CHECK(message_of("f", "x", shaped<2>(32, 512), {32, 512}) == "");
  CHECK(message_of("f", "x", shaped<2>(32, 512), {any_extent, 512}) == "");
  CHECK(message_of("f", "x", shaped<2>(0, 512), {any_extent, 512}) == "");
  CHECK(message_of("f", "x", shaped<4>(1, 2, 3, 4), {1, any_extent, any_extent, 4}) == "");
  CHECK(message_of("f", "x", shaped<1>(0), {0}) == "");
}

TEST_CASE("the message names place, argument, expected and actual extents") {
  CHECK(message_of("Mixture.forward", "x", shaped<2>(32, 256), {any_extent, 512}) ==
        "Mixture.forward: x: expected [?, 512], got [32, 256]");
  CHECK(message_of("CrossEntropy", "target", shaped<1>(3), {4}) == "CrossEntropy: target: expected [4], got [3]");
  CHECK(message_of("f", "w", shaped<3>(2, 3, 4), {2, 4, 3}) == "f: w: expected [2, 4, 3], got [2, 3, 4]");
  CHECK(message_of("f", "x", shaped<2>(Index(1) << 40, 0), {Index(1) << 41, any_extent}) ==
        "f: x: expected [2199023255552, ?], got [1099511627776, 0]");
}

TEST_CASE("every single extent counts") {
  for (int wrong = 0; wrong < 4; ++wrong) {
    Index extent[4] = {5, 6, 7, 8};
    ++extent[wrong];
    CAPTURE(wrong);
    CHECK(message_of("f", "x", shaped<4>(extent[0], extent[1], extent[2], extent[3]), {5, 6, 7, 8}) != "");
  }
}

TEST_CASE("another number of dimensions does not fit") {
  CHECK(message_of("f", "x", shaped<2>(3, 4), {3}) == "f: x: expected [3], got [3, 4]");
  CHECK(message_of("f", "x", shaped<1>(3), {3, 4}) == "f: x: expected [3, 4], got [3]");
  CHECK(message_of("f", "x", shaped<4>(1, 2, 3, 4), {}) == "f: x: expected [], got [1, 2, 3, 4]");
}

TEST_CASE("tensors are asked like views") {
  const Tensor<double, 2, Cpu> x(2, 3);
  CHECK(message_of("f", "x", x, {2, 3}) == "");
  CHECK(message_of("f", "x", x, {3, 2}) == "f: x: expected [3, 2], got [2, 3]");
}
