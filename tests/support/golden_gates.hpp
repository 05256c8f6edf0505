#pragma once

#include <cstdint>
#include <string>

#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/policy/noise.hpp"
#include "support/golden.hpp"

/// The mixtures of tests/golden/gate_cases.py.
namespace gatefold::support {

/// Returns the noise of a case, or no noise if the case has none.
inline Noise noise(Golden& g) {
  if (!g.has("options.step")) return {};
  return {Random{Seed{static_cast<std::uint64_t>(g.option("seed"))}, static_cast<std::uint64_t>(g.option("step"))}};
}
inline View<const double, 1, Cpu> valid(Golden& g) {
  if (!g.has("valid")) return {};
  return {g.values("valid").data(), g.items()};
}
inline Index length(Golden& g) { return g.has("options.length") ? g.extent("length") : 0; }
inline Linear small_expert(Golden& g) { return {.model_dim = g.extent("model_dim"), .output_dim = 2}; }

/// Checks every case of the file: a mixture of linear experts with the gate gate(case) computes the stored results.
template <class GateF, class Give>
void gate_agrees(const char* file, GateF&& gate, Give&& give) {
  agrees(
      std::string("gate/") + file,
      [&](Golden& g) {
        return Mixture{gate(g), small_expert(g)};
      },
      give);
}
template <class GateF>
void gate_agrees(const char* file, GateF&& gate) {
  gate_agrees(file, gate, [](Golden& g, auto& extra) { extra.valid = valid(g); });
}

}  // namespace gatefold::support
