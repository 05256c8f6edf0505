#include "gatefold/policy/nested.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

namespace {

struct Plain {};
struct Full {
  template <class T, class B>
  struct Params {};
  template <class T, class B>
  using Items = View<const Index, 1, B>;
};

}  // namespace

TEST_CASE("nested types: missing ones are Nothing; items are rows") {
  CHECK(std::is_same_v<Params<Plain, float, Cpu>, Nothing<float, Cpu>>);
  CHECK(std::is_same_v<Carry<Plain, double, Cpu>, Nothing<double, Cpu>>);
  CHECK(std::is_same_v<Items<Plain, float, Cpu>, View<const float, 2, Cpu>>);
  CHECK(std::is_same_v<ItemsGrad<Plain, float, Cpu>, View<float, 2, Cpu>>);
}

TEST_CASE("nested types: the policy's types are used; ids lack adjoints") {
  CHECK(std::is_same_v<Params<Full, float, Cpu>, Full::Params<float, Cpu>>);
  CHECK(std::is_same_v<Items<Full, float, Cpu>, View<const Index, 1, Cpu>>);
  CHECK(std::is_same_v<ItemsGrad<Full, float, Cpu>, Nothing<float, Cpu>>);
}
