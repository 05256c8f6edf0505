// The layer on the CPU. A file that nvcc compiles cannot use Cpu, so each backend has a separate file.
#include <gatefold/gatefold.hpp>

#include "layer.hpp"

// [snippet cpu]
example::Outcome example::run_on_cpu(const Size& size) {
  Cpu::Context ctx;
  return run<Cpu>(ctx, size);
}
// [/snippet]
