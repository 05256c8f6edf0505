#include "gatefold/backend/object_pool.hpp"

#include <doctest/doctest.h>

#include <vector>

using gatefold::ObjectPool;

TEST_CASE("ObjectPool: a returned object is lent again with its memory") {
  ObjectPool lender;
  const double* first;
  {
    auto v = lender.acquire<std::vector<double>>();
    v->resize(100);
    first = v->data();
  }
  auto again = lender.acquire<std::vector<double>>();
  CHECK(again->data() == first);
  auto second = lender.acquire<std::vector<double>>();  // the first is in use
  CHECK(second->empty());
  auto other = lender.acquire<std::vector<float>>();  // another type
  CHECK(other->empty());
}

TEST_CASE("ObjectPool: destroys its objects") {
  static int alive = 0;
  struct Counted {
    Counted() { ++alive; }
    ~Counted() { --alive; }
  };
  {
    ObjectPool lender;
    for (int i = 0; i < 5; ++i) auto c = lender.acquire<Counted>();
    CHECK(alive == 1);
    auto a = lender.acquire<Counted>(), b = lender.acquire<Counted>();
    CHECK(alive == 2);
  }
  CHECK(alive == 0);
}

// The preset `test` links with --icf=all --ignore-data-address-equality. Even then, the pool must not mix up objects of
// different types.
TEST_CASE("ObjectPool: an idle object is reused only as its type") {
  struct Small {
    int value = 1;
  };
  struct Large {
    int values[1000] = {2};
  };
  ObjectPool lender;
  for (int i = 0; i < 2; ++i) {
    CHECK(lender.acquire<Small>()->value == 1);
    CHECK(lender.acquire<Large>()->values[0] == 2);
    CHECK(lender.acquire<std::vector<double>>()->empty());
    CHECK(lender.acquire<std::vector<float>>()->empty());
  }
}
