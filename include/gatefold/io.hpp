#pragma once

/// Reading and writing files of tensors. This header is not part of gatefold.hpp, because it needs nlohmann-json (CMake
/// target gatefold::io).
// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/block_scales.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/output_file.hpp"
#include "gatefold/io/replacement.hpp"
#include "gatefold/io/folder_replacement.hpp"
#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/io/layout.hpp"
#include "gatefold/io/opened.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/strings.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/io/tensor_pieces.hpp"
#include "gatefold/io/tensor_map.hpp"
#include "gatefold/io/published_maps.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/frozen_tensors.hpp"
#include "gatefold/train/load_parameters.hpp"
#include "gatefold/train/frozen_file.hpp"
#include "gatefold/distributed/tensors_here.hpp"
#include "gatefold/distributed/checkpoint.hpp"
// clang-format on
