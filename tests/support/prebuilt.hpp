#pragma once

#include "gatefold/backend/cpu/cpu.hpp"

// What nearly every test program instantiates, built once in prebuilt.cpp. Included by force in the preset `test`,
// where it takes a sixth off the time to compile; the presets `sanitize` (after Eigen and doctest) and `v3` do without,
// and so show that headers compile alone.
namespace gatefold::cpu {

extern template class Product<float>;
extern template class Product<double>;
extern template class ProductPair<float>;
extern template class ProductPair<double>;

}  // namespace gatefold::cpu
