// Reports about the code that the emulator runs: faults end a launch, races are collected.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace gatefold::cuda_emulator {

/// An error of the code under test: an access out of bounds, a deadlock, an unknown instruction. The message names the
/// error, the instruction and its source line, the kernel, the block and the thread.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The data races found so far, one sentence per instruction and launch. Tests clear and read the list.
std::vector<std::string>& races();

/// Adds a data race to the list.
void race(std::string message);

/// Returns a demangled name, for example `oob(float*, int)` for `_Z3oobPfi`. Other names are returned unchanged.
std::string demangled(const std::string& name);

/// Returns a number as text, for example `0x7f00a0`.
std::string hexadecimal(unsigned long long value);

}  // namespace gatefold::cuda_emulator
