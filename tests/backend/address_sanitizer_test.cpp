#include "gatefold/backend/address_sanitizer.hpp"

#include <doctest/doctest.h>

#include "support/poisoned.hpp"

using namespace gatefold;

TEST_CASE("address_sanitizer: poison marks bytes exactly until unpoison") {
  alignas(8) char memory[64] = {};
  detail_::address_sanitizer::poison(memory, sizeof memory);
  CHECK(support::poisoned(memory) == support::address_sanitized);
  CHECK(support::poisoned(memory + 63) == support::address_sanitized);
  detail_::address_sanitizer::unpoison(memory, 35);
  CHECK(!support::poisoned(memory));
  CHECK(!support::poisoned(memory + 34));
  CHECK(support::poisoned(memory + 35) == support::address_sanitized);
  detail_::address_sanitizer::unpoison(memory, sizeof memory);
  CHECK(!support::poisoned(memory + 63));
}
