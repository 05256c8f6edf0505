#include "gatefold/backend/cpu/kernels.hpp"
