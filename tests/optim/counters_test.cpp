#include "gatefold/optim/counters.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

struct Counted {
  Tensor<float, 1, Cpu> m;
  Index step = 0;
  GATEFOLD_PACK(m)
};
struct Listed {
  Counted inner;
  double rate = 0;
  Index step = 0;  // not listed
  GATEFOLD_PACK(inner)
  static void counters(auto&& f, auto&... s) { f("rate", s.rate...); }
};
struct Owner {
  std::vector<Counted> many;
  std::tuple<Listed, Counted> pair;
  GATEFOLD_PACK(many, pair)
};

}  // namespace

TEST_CASE("for_each_counter: visits listed counters or step, in nested states") {
  Owner owner;
  owner.many.resize(2);
  owner.many[1].step = 3;
  std::get<0>(owner.pair).rate = 0.5;
  std::get<0>(owner.pair).inner.step = 5;
  std::get<1>(owner.pair).step = 7;
  std::string found;
  optim::for_each_counter(
      [&](const Name& name, const auto& number) { found += name.str() + "=" + std::to_string(number) + " "; }, Name{},
      std::as_const(owner));
  CHECK(found == "many.0.step=0 many.1.step=3 pair.0.rate=0.500000 pair.0.inner.step=5 pair.1.step=7 ");
  optim::for_each_counter([](const Name&, auto& number) { number = 11; }, Name{}, owner);
  CHECK(owner.many[0].step == 11);
  CHECK(std::get<0>(owner.pair).rate == 11);
  CHECK(std::get<0>(owner.pair).step == 0);
}

TEST_CASE("counters: integers and floating-point numbers are restored exactly") {
  CHECK(optim::kept(Index(7)) == 7);
  CHECK(optim::restored<int>(optim::kept(7)) == 7);
  CHECK(optim::kept(1.0) == std::uint64_t{0x3ff0000000000000});
  CHECK(optim::kept(1.0f) == std::uint32_t{0x3f800000});
  for (const double x : {0.1, -0.0, std::numeric_limits<double>::infinity(), 5e-324})
    CHECK(optim::kept(optim::restored<double>(optim::kept(x))) == optim::kept(x));
  CHECK(optim::restored<float>(optim::kept(0.1f)) == 0.1f);
}
