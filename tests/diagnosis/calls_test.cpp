#include "gatefold/diagnosis/calls.hpp"

#include <doctest/doctest.h>

// compile_fail/wrong_number_of_arguments and init_without_backend test the sentences.
namespace {

struct TakesTwo {
  int forward(int a, int b) const { return a + b; }
  GATEFOLD_WRONG_COUNT(forward, 2, 2, "gatefold: forward takes (a, b)");
};

template <class L, class... A>
concept Callable = requires(const L layer, A... a) {
  layer.forward(a...);
};

}  // namespace

TEST_CASE("GATEFOLD_WRONG_COUNT: leaves right calls; concepts find no other") {
  CHECK(TakesTwo{}.forward(1, 2) == 3);
  CHECK(Callable<TakesTwo, int, int>);
  CHECK_FALSE(Callable<TakesTwo, int>);
  CHECK_FALSE(Callable<TakesTwo, int, int, int>);
}
