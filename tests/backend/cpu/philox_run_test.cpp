#include "gatefold/backend/cpu/philox_run.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace gatefold;

TEST_CASE_TEMPLATE("PhiloxRun: equals `uniform`, also across 32- and 64-bit counter limits", T, float, double) {
  for (const std::uint64_t seed : {0ull, 7ull, 0x452821e638d01377ull})
    for (const std::uint64_t step : {0ull, 3ull, 0x0370734413198a2eull})
      for (const std::uint64_t first : {0ull, 1ull, 0xfffffff9ull, 0x85a308d3243f6a88ull, 0xfffffffffffffff3ull}) {
        const cpu::PhiloxRun run({Seed{seed}, step}, first);
        int wrong = 0;
        for (int j = 0; j < run.size; ++j)
          wrong += run.uniform<T>(j) != uniform<T>(Seed{seed}, step, first + static_cast<std::uint64_t>(j));
        CHECK(wrong == 0);
      }
}
