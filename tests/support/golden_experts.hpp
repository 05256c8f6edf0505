#pragma once

#include <string>

#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/golden.hpp"

/// The mixtures of tests/golden/expert_cases.py.
namespace gatefold::support {

/// The two best of three.
inline SoftmaxTopK two_of_three() { return {.scores = {.experts = 3}, .selection = {.k = 2, .renormalise = false}}; }

/// A mixture of what expert(case) makes agrees with every case of the file.
template <class ExpertF>
void expert_agrees(const char* file, ExpertF&& expert) {
  agrees(std::string("expert/") + file, [&](Golden& g) { return Mixture{two_of_three(), expert(g)}; });
}

/// The options of an expert in the file, some of them under a name.
template <class ExpertT>
ExpertT flat(Golden& g, const std::string& at = "") {
  ExpertT e{.model_dim = g.extent(at + "model_dim"), .hidden_dim = g.extent(at + "hidden_dim")};
  if constexpr (requires { e.bias; }) e.bias = g.flag(at + "bias");
  return e;
}

}  // namespace gatefold::support
