#include "gatefold/policy/families.hpp"

#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

/// Returns whether a forward-declared type is defined by the library.
template <class V>
constexpr bool is_defined = requires {
  sizeof(V);
};

}  // namespace

TEST_CASE("families: forward declarations match the definitions") {
  CHECK(is_defined<Noise>);
  CHECK(is_defined<Candidates<float, Cpu>>);
  CHECK(is_defined<SparsePlan<float, Cpu>>);
  CHECK(is_defined<SlotWeights<float, Cpu>>);
  CHECK(is_defined<Groups<Cpu>>);
  CHECK(is_defined<detail_::backend::AnyFunctor>);
  CHECK(is_defined<functor::NoStep<float>>);
  CHECK(is_defined<detail_::policy::ProbeCall<float, Cpu>>);
}
