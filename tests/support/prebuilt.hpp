#pragma once

#include "gatefold/backend/cpu/cpu.hpp"

// What nearly every test program instantiates, built once in prebuilt.cpp. Included by force in the preset `test`, where it
// takes a sixth off the time to compile; the preset `sanitize` does without, and so shows that headers compile alone.
namespace gatefold::cpu {

extern template class Product<float>;
extern template class Product<double>;
extern template class ProductPair<float>;
extern template class ProductPair<double>;

}  // namespace gatefold::cpu
