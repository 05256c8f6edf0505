// The library of gatefold::kernels: compiled once for each instruction set, each in a separate namespace.
#define GATEFOLD_KERNELS_SOURCE
#include <gatefold/gatefold.hpp>
