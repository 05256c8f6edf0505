#pragma once

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include "learn.hpp"
#include "study.hpp"
#include "text.hpp"

namespace studies::lm {

/// Milliseconds of a training step and of reading as much, and bytes that are held once the first steps are done: of
/// all cases in turn, so that whatever else the machine does meets all of them. The fastest of some rounds.
inline void print_costs(const Comparison& comparison, const Text& text) {
  struct Cost {
    std::unique_ptr<Model> model;
    double bytes = 0, step = 1e300, loss = 1e300;
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto held = [] {
    const auto heap = mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
  };
  std::vector<Cost> costs(comparison.cases.size());
  for (int round = 0; round < 8; ++round)
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const Case& c = comparison.cases[i];
      Cost& cost = costs[i];
      Blocks blocks(text.train, c.setting);
      blocks.read(round);
      const double before = held();
      if (round == 0) cost.model = c.make(c.setting, Seed{1});
      const auto time = [&](double& fastest, const auto& work) {
        const auto start = now();
        for (int i = 0; i < 4; ++i) work();
        fastest = std::min(fastest, std::chrono::duration<double, std::milli>(now() - start).count() / 4);
      };
      time(cost.step, [&] { cost.model->step(blocks.x, blocks.next); });
      time(cost.loss, [&] { cost.model->surprises(blocks.x, blocks.next); });
      if (round == 0) cost.bytes = held() - before;
    }
  std::puts(
      "| model | parameters | ms a step | over its baseline | ms to read | over it | MiB | over it |\n"
      "|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto baseline =
        static_cast<std::size_t>(std::find_if(comparison.cases.begin(), comparison.cases.end(),
                                              [&](const Case& c) { return c.name == comparison.cases[i].baseline; }) -
                                 comparison.cases.begin());
    if (baseline == costs.size()) continue;
    const Cost &cost = costs[i], &of = costs[baseline];
    std::printf("| %s | %lld | %.2f | %.3f | %.2f | %.3f | %.1f | %.3f |\n", comparison.cases[i].label.c_str(),
                static_cast<long long>(cost.model->parameters()), cost.step, cost.step / of.step, cost.loss,
                cost.loss / of.loss, cost.bytes / 1048576, cost.bytes / of.bytes);
  }
}

}  // namespace studies::lm
