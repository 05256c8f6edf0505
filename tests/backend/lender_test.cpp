#include "gatefold/backend/lender.hpp"

#include <doctest/doctest.h>

#include <vector>

using gatefold::Lender;

TEST_CASE("what was lent is lent again, with its memory") {
  Lender lender;
  const double* first;
  {
    auto v = lender.borrow<std::vector<double>>();
    v->resize(100);
    first = v->data();
  }
  auto again = lender.borrow<std::vector<double>>();
  CHECK(again->data() == first);
  auto second = lender.borrow<std::vector<double>>();  // the first is in use
  CHECK(second->empty());
  auto other = lender.borrow<std::vector<float>>();  // another type
  CHECK(other->empty());
}

TEST_CASE("objects are destroyed with their lender") {
  static int alive = 0;
  struct Counted {
    Counted() { ++alive; }
    ~Counted() { --alive; }
  };
  {
    Lender lender;
    for (int i = 0; i < 5; ++i) auto c = lender.borrow<Counted>();
    CHECK(alive == 1);
    auto a = lender.borrow<Counted>(), b = lender.borrow<Counted>();
    CHECK(alive == 2);
  }
  CHECK(alive == 0);
}
