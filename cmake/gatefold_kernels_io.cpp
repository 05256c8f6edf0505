// Source file of gatefold::kernels: the functions of gatefold::io that do not depend on the types that are read and
// written.
#define GATEFOLD_KERNELS_IO_SOURCE
#include <gatefold/io.hpp>
#include <gatefold/train/load_decoder.hpp>
