#include "gatefold/backend/cpu/register_access.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;
using cpu::Register;
using cpu::RegisterAccess;

TEST_CASE_TEMPLATE("RegisterAccess: a tail accesses only its elements", T, float, double) {
  constexpr int size = Register<T>::size;
  for (int count = 1; count <= size; ++count) {
    // `in` has exactly `count` elements on the heap, so that a sanitizer sees a read past them.
    std::vector<T> in(static_cast<std::size_t>(count)), out(static_cast<std::size_t>(size) + 1, T(-7));
    for (int i = 0; i < count; ++i) in[static_cast<std::size_t>(i)] = T(i + 1);
    const RegisterAccess<T> at{count};
    const Register<T> v = at.load(in.data());
    T lanes[size];
    v.store(lanes);
    for (int i = 0; i < size; ++i) CHECK(lanes[i] == (i < count ? T(i + 1) : T(0)));
    at.store(out.data(), v);
    for (int i = 0; i <= size; ++i) CHECK(out[static_cast<std::size_t>(i)] == (i < count ? T(i + 1) : T(-7)));
    at.store(in.data(), v);
  }
}

TEST_CASE("RegisterAccess: rounds to bfloat16, writes only its elements") {
  constexpr int size = Register<float>::size;
  const auto values = naive::random_vector<float>(size, 4);
  for (int count = 1; count <= size; ++count) {
    const RegisterAccess<float> at{count};
    std::vector<Bfloat16> halves(static_cast<std::size_t>(size) + 1, Bfloat16{std::uint16_t(0x4040)});  // the bits of 3
    at.store(halves.data(), Register<float>::load(values.data()));
    for (int i = 0; i <= size; ++i)
      CHECK(halves[static_cast<std::size_t>(i)].bits ==
            (i < count ? Bfloat16::from(values[static_cast<std::size_t>(i)]).bits : 0x4040));
    // `exact` has exactly `count` elements to read.
    const std::vector<Bfloat16> exact(halves.begin(), halves.begin() + count);
    float lanes[size];
    at.load(exact.data()).store(lanes);
    for (int i = 0; i < size; ++i)
      CHECK(lanes[i] == (i < count ? static_cast<float>(halves[static_cast<std::size_t>(i)]) : 0.0f));
  }
}
