#include "gatefold/policy/extra_parts.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>

using namespace gatefold;

namespace {

struct Part {
  char name;
};
struct Gate {
  char name;
  Part scores{'s'}, mixing{'m'}, selection{'k'};
};
struct Drop {
  char name;
  Noise noise{};
  Gate branch{'g'};
};
struct Pair {
  char name;
  Part attention{'a'};
  Drop layer{'d'};
};
struct Layers {
  char name;
  std::tuple<Part, Pair> layers{{'1'}, {'2'}};
};

}  // namespace

TEST_CASE("for_each_extra: visits each inner part once, in order") {
  Layers all{'c'};
  std::string order;
  detail_::lookup::for_each_extra(all, [&](auto& part) {
    if constexpr (requires { part.name; }) {
      order += part.name;
      part.name = 'x';
    } else {
      order += 'n';
    }
  });
  CHECK(order == "c12adgsmkn");
  CHECK(std::get<1>(all.layers).layer.branch.selection.name == 'x');  // the parts themselves, not copies
}
