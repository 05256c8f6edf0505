#pragma once

// Checks for policies of one's own. Include a backend's umbrella first, gatefold.hpp say.

#include "gatefold/check/conformance.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"
#include "gatefold/check/items.hpp"
