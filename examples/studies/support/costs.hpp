#pragma once

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common.hpp"

namespace studies {

/// A model whose costs are measured. `make` makes it, `step` runs one training step on prepared data, `read` runs
/// inference on the same data.
template <class Model>
struct Costed {
  std::string name, label, baseline;  // baseline: name of the model to compare with, or its own name
  std::function<std::unique_ptr<Model>()> make;
  std::function<void(Model&)> step, read;
};

/// Prints the milliseconds of a training step and of inference on the same data, and the bytes of memory that a model
/// holds after its first steps. All models run in turn, so that other load of the machine affects all models equally.
/// The fastest of several rounds counts. Leaves out models whose baseline is not in the list.
template <class Model>
void print_costs(const std::vector<Costed<Model>>& models) {
  struct Cost {
    std::unique_ptr<Model> model;
    double bytes = 0, step = 1e300, read = 1e300;
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto held = [] {
#if defined(__GLIBC__)
    const auto heap = mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
#else
    return std::numeric_limits<double>::quiet_NaN();  // other C libraries do not report heap memory
#endif
  };
  std::vector<Cost> costs(models.size());
  for (int round = 0; round < 8; ++round)
    for (std::size_t i = 0; i < costs.size(); ++i) {
      Cost& cost = costs[i];
      const double before = held();
      if (round == 0) cost.model = models[i].make();
      const auto time = [&](double& fastest, const auto& work) {
        const auto start = now();
        for (int i = 0; i < 4; ++i) work(*cost.model);
        fastest = std::min(fastest, std::chrono::duration<double, std::milli>(now() - start).count() / 4);
      };
      time(cost.step, models[i].step);
      time(cost.read, models[i].read);
      if (round == 0) cost.bytes = held() - before;
    }
  std::puts(
      "| model | parameters | ms a step | over its baseline | ms to read | over it | MiB | over it |\n"
      "|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto baseline =
        std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == models[i].baseline; });
    if (baseline == models.end()) continue;
    const Cost &cost = costs[i], &of = costs[static_cast<std::size_t>(baseline - models.begin())];
    std::printf("| %s | %lld | %.2f | %.3f | %.2f | %.3f | %.1f | %.3f |\n", models[i].label.c_str(),
                static_cast<long long>(cost.model->parameters()), cost.step, cost.step / of.step, cost.read,
                cost.read / of.read, cost.bytes / 1048576, cost.bytes / of.bytes);
  }
}

}  // namespace studies
