#pragma once

/// Files of tensors. Outside the umbrella: they need nlohmann-json (target gatefold::io).
#include "gatefold/core/float16.hpp"
#include "gatefold/core/regular_file.hpp"
#include "gatefold/dist/checkpoint.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/published_maps.hpp"
#include "gatefold/io/replacement.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/io/strings.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/io/tensor_map.hpp"
#include "gatefold/train/checkpoint.hpp"
