// Of gatefold::kernels: the functions of gatefold::io that are the same whatever is read and written.
#define GATEFOLD_KERNELS_IO_SOURCE
#include <gatefold/io.hpp>
