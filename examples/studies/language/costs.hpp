#pragma once

#include <memory>
#include <vector>

#include "../support/costs.hpp"
#include "learn.hpp"
#include "study.hpp"
#include "text.hpp"

namespace studies::lm {

/// Prints time and memory of all cases, measured with the first batch of the text.
inline void print_costs(const Comparison& comparison, const Text& text) {
  std::vector<Costed<Model>> models;
  for (const Case& c : comparison.cases) {
    const auto blocks = std::make_shared<Blocks>(text.train, c.setting);
    blocks->read(0);
    models.push_back({c.name, c.label, c.baseline, [&c] { return c.make(c.setting, Seed{1}); },
                      [blocks](Model& model) { model.step(blocks->x, blocks->next); },
                      [blocks](Model& model) { model.surprises(blocks->x, blocks->next); }});
  }
  studies::print_costs(models);
}

}  // namespace studies::lm
