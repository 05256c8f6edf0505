#pragma once

/// Readers of data sets, and augmentation of images. They are not part of gatefold.hpp, because the reader of IDX files
/// needs zlib (CMake target gatefold::data).
// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/core/regular_file.hpp"
#include "gatefold/data/augment.hpp"
#include "gatefold/data/idx.hpp"
#include "gatefold/data/images.hpp"
#include "gatefold/data/text_reader.hpp"
#include "gatefold/data/tokens.hpp"
#include "gatefold/data/vocabulary.hpp"
#include "gatefold/data/corpus.hpp"
// clang-format on
