// What the emulator tells of the code it runs: faults end a launch, races are collected.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace gatefold::cuda_emulator {

/// An error of the code under test: an access out of bounds, a deadlock, an unknown instruction. The message names what
/// happened, the instruction and its source line, the kernel, the block and the thread.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The data races seen so far, one sentence per instruction and launch. Tests clear it and read it.
std::vector<std::string>& races();

/// Notes a data race.
void race(std::string message);

/// `_Z3oobPfi` as `oob(float*, int)`; any other name as it is.
std::string demangled(const std::string& name);

/// `0x7f00a0`
std::string hexadecimal(unsigned long long value);

}  // namespace gatefold::cuda_emulator
