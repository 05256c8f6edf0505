#pragma once

/// Files of tensors. Outside the umbrella: they need nlohmann-json (target gatefold::io).
#include "gatefold/io/safetensors.hpp"
