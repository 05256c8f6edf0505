#pragma once

// Checks for your own policies. Include the umbrella header of a backend first, for example gatefold.hpp.

// Each header comes after the headers that it includes (tests/structure/order.sh).
// clang-format off
#include "gatefold/check/hooks.hpp"
#include "gatefold/check/items.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/loss_gradient.hpp"
#include "gatefold/check/rows.hpp"
#include "gatefold/check/unlisted.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/check/optimizer_steps.hpp"
// clang-format on
