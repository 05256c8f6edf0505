#pragma once

#include <array>
#include <cstdint>
#include <exception>

#pragma GCC visibility push(default)
namespace thrower {

using Identities = std::array<const void*, 5>;
/// Throws Error, ArgumentError, FileError, DeviceError or NotFiniteError, for the numbers 0, 1, 2, 3 and 4.
void throw_error(int number);
void throw_pointer(std::exception_ptr& to);
Identities identities();
std::uint64_t next_stamp();

}  // namespace thrower

namespace catcher {

/// Returns how many expectations failed, and prints each of them.
int check();

}  // namespace catcher
#pragma GCC visibility pop
