#pragma once

// Tests for policies that you write yourself. Before this header, include the main header of a backend, for example
// gatefold.hpp.

// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"
#include "gatefold/check/unlisted.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/check/optimizer_steps.hpp"
// clang-format on
