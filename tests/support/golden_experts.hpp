#pragma once

#include <string>

#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/golden.hpp"

/// The mixtures of tests/golden/expert_cases.py.
namespace gatefold::support {

/// Returns a gate that picks the best two of three experts.
inline SoftmaxTopK two_of_three() { return {.scores = {.experts = 3}, .selection = {.k = 2, .renormalise = false}}; }

/// Checks every case of the file: a mixture with the expert expert(case) computes the stored results.
template <class ExpertF>
void expert_agrees(const char* file, ExpertF&& expert) {
  agrees(std::string("expert/") + file, [&](Golden& g) { return Mixture{two_of_three(), expert(g)}; });
}

/// Returns an expert with the options of the case. The names of the options in the file begin with `at`. If the file
/// has no option for the bias, the expert keeps its default for `bias`.
template <class ExpertT>
ExpertT flat(Golden& g, const std::string& at = "") {
  ExpertT e{.model_dim = g.extent(at + "model_dim"), .hidden_dim = g.extent(at + "hidden_dim")};
  if constexpr (requires { e.bias; })
    if (g.has("options." + at + "bias")) e.bias = g.flag(at + "bias");
  return e;
}

}  // namespace gatefold::support
