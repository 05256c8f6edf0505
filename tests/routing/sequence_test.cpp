#include "gatefold/routing/sequence.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

TEST_CASE("Sequence: length 0 means one sequence of all items") {
  const Sequence<float, Cpu> all{};
  CHECK(all.of(12) == 12);
  CHECK(all.of(0) == 0);
  CHECK_NOTHROW(all.validate("f", 12));
  CHECK_NOTHROW(all.validate("f", 0));
  const Sequence<float, Cpu> four{4};
  CHECK(four.of(12) == 4);
}

TEST_CASE("Sequence: a length that does not divide the items throws") {
  const Sequence<double, Cpu> three{3};
  CHECK_NOTHROW(three.validate("Attention", 9));
  CHECK_NOTHROW(three.validate("Attention", 0));
  CHECK_THROWS_WITH_AS(three.validate("Attention.forward", 10),
                       "Attention.forward: sequence.length: expected a divisor of the number of items 10, got 3",
                       ArgumentError);
  CHECK_THROWS_WITH_AS((Sequence<double, Cpu>{-1}.validate("Attention.forward", 10)),
                       "Attention.forward: sequence.length: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_AS((Sequence<double, Cpu>{20}.validate("f", 10)), ArgumentError);
}

TEST_CASE("Sequence: valid has one entry per item, or is empty") {
  const std::vector<float> valid{1, 1, 0, 1};
  const Sequence<float, Cpu> sequence{2, valid};
  CHECK_NOTHROW(sequence.validate("f", 4));
  CHECK_THROWS_WITH_AS(sequence.validate("Attention.forward", 6),
                       "Attention.forward: sequence.valid: expected [6], got [4]", ArgumentError);
}
