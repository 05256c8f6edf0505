#include "gatefold/core/error.hpp"

#include <doctest/doctest.h>

#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>

using namespace gatefold;

namespace {

struct Counted {
  int* times;
  friend std::ostream& operator<<(std::ostream& stream, const Counted& p) {
    ++*p.times;
    return stream << "printed";
  }
};

template <class... A>
std::string message_of(const A&... arguments) {
  try {
    expect(false, arguments...);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("Error: every library error is a gatefold::Error and std::runtime_error") {
  static_assert(std::is_base_of_v<std::runtime_error, Error>);
  static_assert(std::is_base_of_v<Error, ArgumentError>);
  static_assert(std::is_base_of_v<Error, FileError>);
  static_assert(std::is_base_of_v<Error, DeviceError>);
  static_assert(!std::is_base_of_v<ArgumentError, FileError> && !std::is_base_of_v<ArgumentError, DeviceError>);
  try {
    throw DeviceError("cudaMalloc: out of memory");
  } catch (const std::runtime_error& error) {
    CHECK(error.what() == std::string("cudaMalloc: out of memory"));
  }
}

TEST_CASE("expect: names place, option, expected and actual value") {
  CHECK(message_of("TopK", "k", "1 <= k <= experts = 8", 9) == "TopK: k: expected 1 <= k <= experts = 8, got 9");
  CHECK(message_of("Stack", "layer.out_dim", 64, 32) == "Stack: layer.out_dim: expected 64, got 32");
  CHECK(message_of("Clipped", "norm", "more than 0", -0.5) == "Clipped: norm: expected more than 0, got -0.5");
  CHECK(message_of("f", "mode", "on", std::string("off")) == "f: mode: expected on, got off");
}

TEST_CASE("expect: joins its parts only when printing") {
  CHECK(message_of("TopK", "k", Joined{"1 <= k <= experts = ", 8}, 9) ==
        "TopK: k: expected 1 <= k <= experts = 8, got 9");
  CHECK(message_of("Chain", Joined{"layers.", 2, ".in_dim"}, Joined{64, " (before)"}, 32) ==
        "Chain: layers.2.in_dim: expected 64 (before), got 32");
  int times = 0;
  expect(true, "where", "name", Joined{Counted{&times}, Counted{&times}}, 0);
  CHECK(times == 0);
}

TEST_CASE("expect: builds its message only on failure") {
  int times = 0;
  CHECK_NOTHROW(expect(true, "where", "name", Counted{&times}, Counted{&times}));
  CHECK(times == 0);
  CHECK(message_of("where", "name", Counted{&times}, Counted{&times}) == "where: name: expected printed, got printed");
  CHECK(times == 2);
}
