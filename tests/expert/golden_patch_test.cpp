// Experts on patches, compared with PyTorch: tests/golden/expert_cases.py.

#include <doctest/doctest.h>

#include "gatefold/expert/patch_cnn.hpp"
#include "gatefold/expert/patch_mlp.hpp"
#include "support/golden_experts.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class ExpertT>
ExpertT patched(Golden& g) {
  return {.model_dim = g.extent("model_dim"),
          .patches = g.extent("patches"),
          .filters = g.extent("filters"),
          .outputs = g.extent("outputs"),
          .bias = g.flag("bias")};
}

}  // namespace

TEST_CASE("golden: PatchMlp agrees with PyTorch") { expert_agrees("patch_mlp", patched<PatchMlp<Cubic>>); }

TEST_CASE("golden: PatchCnn agrees with PyTorch") { expert_agrees("patch_cnn", patched<PatchCnn<Cubic>>); }
