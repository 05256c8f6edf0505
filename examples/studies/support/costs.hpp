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

/// Prints the milliseconds of a training step and of inference on the same data. Also prints the MiB of memory that a
/// model holds after its first step and its first inference. For each model, a new model and a new baseline run in
/// turn. The ratio of their times is printed as the median of the rounds, with the second lowest and the second highest
/// ratio, so that other load of the machine shows. Leaves out models with a baseline that is not in the list.
template <class Model>
void print_costs(const std::vector<Costed<Model>>& models) {
  constexpr int rounds = 9, calls = 3;
  struct Made {
    const Costed<Model>& costed;
    std::unique_ptr<Model> model;
    double bytes;

    explicit Made(const Costed<Model>& of) : costed(of), bytes(-held()) {
      model = of.make();
      of.step(*model);
      of.read(*model);
      bytes += held();
    }
    static double held() {
#if defined(__GLIBC__)
      const auto heap = mallinfo2();
      return static_cast<double>(heap.uordblks + heap.hblkhd);
#else
      return std::numeric_limits<double>::quiet_NaN();  // other C libraries do not report heap memory
#endif
    }
    double milliseconds(std::function<void(Model&)> Costed<Model>::*work) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) (costed.*work)(*model);
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / calls;
    }
  };
  // Returns two cells: the time of a model, and its ratio to the baseline.
  const auto cells = [](auto work, Made& made, Made& baseline) {
    std::vector<double> times, ratios;
    for (int round = 0; round < rounds; ++round) {
      const double of = baseline.milliseconds(work);
      times.push_back(made.milliseconds(work));
      ratios.push_back(times.back() / of);
    }
    std::sort(times.begin(), times.end());
    std::sort(ratios.begin(), ratios.end());
    char text[80];
    std::snprintf(text, sizeof text, "%.1f | %.3f [%.3f, %.3f]", times[rounds / 2], ratios[rounds / 2], ratios[1],
                  ratios[rounds - 2]);
    return std::string(text);
  };
  std::puts(
      "| model | parameters | ms a step | over its baseline | ms to read | over it | MiB | over it |\n"
      "|---|---|---|---|---|---|---|---|");
  for (const Costed<Model>& costed : models) {
    const auto of =
        std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == costed.baseline; });
    if (of == models.end()) continue;
    Made baseline(*of), made(costed);
    std::printf("| %s | %lld | %s | %s | %.1f | %.3f |\n", costed.label.c_str(),
                static_cast<long long>(made.model->parameters()), cells(&Costed<Model>::step, made, baseline).c_str(),
                cells(&Costed<Model>::read, made, baseline).c_str(), made.bytes / 1048576, made.bytes / baseline.bytes);
  }
}

}  // namespace studies
