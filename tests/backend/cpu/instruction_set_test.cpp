#include "gatefold/backend/cpu/instruction_set.hpp"

#include <doctest/doctest.h>

#include <string>
#include <typeinfo>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/mlp.hpp"

using namespace gatefold;

namespace {

#define GATEFOLD_TEXT(name) #name
#define GATEFOLD_NAME(name) GATEFOLD_TEXT(name)
const std::string tag = GATEFOLD_NAME(GATEFOLD_CPU_ABI);

template <class T>
bool is_tagged() {
  const std::string space = "on_" + tag;  // GATEFOLD_CPU_NAMESPACE
  return std::string(typeid(T).name()).find(std::to_string(space.size()) + space) != std::string::npos;
}

}  // namespace

TEST_CASE("ABI tag: names of Cpu types contain the instruction set") {
  CHECK(is_tagged<Cpu>());
  CHECK(is_tagged<Cpu::Context>());
  CHECK(is_tagged<Tensor<float, 2, Cpu>>());
  CHECK(is_tagged<Mlp<Gelu>::Params<float, Cpu>>());
  CHECK(is_tagged<cpu::PackedWeights>());
  CHECK(is_tagged<cpu::Register<float>>());
  CHECK(is_tagged<cpu::ProductPair<double>>());
  CHECK(is_tagged<cpu::PhiloxRun>());
  CHECK(!is_tagged<Mlp<Gelu>>());  // Gelu holds options only, which are the same for every instruction set
}

// The name depends on the width of registers, because packed weights do.
TEST_CASE("ABI tag: matches the width of registers") {
  const bool wide = tag.starts_with("avx512"), half = !wide && tag.starts_with("avx");
  const int bytes = wide ? 64 : half ? 32 : tag.starts_with("scalar") ? 4 : 16;
  if (tag != "sve" && tag != "vector") CHECK(cpu::Register<float>::size * int(sizeof(float)) == bytes);
#if defined(__FMA__) && !defined(EIGEN_DONT_VECTORIZE)
  CHECK((wide || tag.ends_with("_fma")));
#endif
}
