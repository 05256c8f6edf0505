#include "gatefold/core/type_id.hpp"

#include <doctest/doctest.h>

#include <set>

#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace {

struct Empty {};
struct AlsoEmpty {};
using gatefold::detail_::type_id;

/// Not inline, so that the comparison reads the addresses from memory, as for an AnyTensor.
[[gnu::noinline]] std::set<const void*> of_five_types() {
  struct Local {};
  return {type_id<float>(), type_id<double>(), type_id<gatefold::Index>(), type_id<gatefold::Bfloat16>(),
          type_id<Local>()};
}

}  // namespace

// Preset test runs this file too, because it links with --icf=all.
TEST_CASE("type_id: different types have different identities") {
  std::set<const void*> ids = of_five_types();
  CHECK(ids.size() == 5);
  ids.insert({type_id<Empty>(), type_id<AlsoEmpty>(), type_id<const Empty>(), type_id<Empty*>()});
  CHECK(ids.size() == 9);
}

TEST_CASE("type_id: one type has one identity") {
  CHECK(type_id<float>() == type_id<float>());
  const std::set<const void*> ids = of_five_types();
  CHECK(ids == of_five_types());
  CHECK(ids.count(type_id<double>()) == 1);
}
