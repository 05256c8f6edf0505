// Source file of the library gatefold::kernels. It is compiled once for each instruction set, in a separate namespace.
#define GATEFOLD_KERNELS_SOURCE
#include <gatefold/gatefold.hpp>
