#pragma once

// Checks for policies of one's own. Include a backend's umbrella first, gatefold.hpp say.

// Each after the headers that it includes (tests/structure/order.sh).
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
