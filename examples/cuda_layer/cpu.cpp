// The layer on the CPU. Cpu cannot be used in a file that nvcc compiles, so each backend has a file of its own.
#include <gatefold/gatefold.hpp>

#include "layer.hpp"

// [snippet cpu]
example::Outcome example::run_on_cpu(const Size& size) {
  Cpu::Context ctx;
  return run<Cpu>(ctx, size);
}
// [/snippet]
