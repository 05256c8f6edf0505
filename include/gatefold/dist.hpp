#pragma once

// Training on several processes. Kept out of gatefold.hpp, which one process needs; include that first.

#include "gatefold/dist/world.hpp"
