// The library of gatefold::kernels: compiled once for each instruction set, each into a namespace of its own.
#define GATEFOLD_KERNELS_SOURCE
#include <gatefold/gatefold.hpp>
