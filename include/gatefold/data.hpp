#pragma once

/// Readers of data sets. Not part of gatefold.hpp, because they need zlib (target gatefold::data).
// Each header comes after the headers that it includes (tests/structure/order.sh).
// clang-format off
#include "gatefold/core/regular_file.hpp"
#include "gatefold/data/idx.hpp"
#include "gatefold/data/split.hpp"
#include "gatefold/data/utf8.hpp"
#include "gatefold/data/text_reader.hpp"
#include "gatefold/data/tokens.hpp"
#include "gatefold/data/vocabulary.hpp"
#include "gatefold/data/corpus.hpp"
// clang-format on
