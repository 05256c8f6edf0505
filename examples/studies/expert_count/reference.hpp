#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "reference_run.hpp"
#include "summary.hpp"

/// Repeats the experiments of the code of Chen et al. 2022 (arXiv:2208.02813, uclaml/MoE), and compares the results
/// with the published ones.
namespace studies::expert_count::reference {

/// Results that Chen et al. 2022 published in notebooks. A mixture has the mean and the standard deviation (divided by
/// n, not by n − 1) of ten runs on one data set. A single network has the result of one run.
struct Published {
  std::array<double, 2> cubic_accuracy, cubic_entropy, linear_accuracy, linear_entropy;  // mean, deviation
  double single_linear, single_cubic;
};
inline constexpr std::array<Published, 4> kPublished{{
    {{99.46, 0.55}, {0.098, 0.088}, {93.00, 2.11}, {1.300, 0.044}, 68.3, 79.6},
    {{98.10, 1.56}, {0.183, 0.144}, {89.49, 1.35}, {1.262, 0.095}, 68.2, 77.4},
    {{99.99, 0.02}, {0.008, 0.011}, {95.93, 1.34}, {1.160, 0.100}, 74.3, 73.7},
    {{98.92, 1.18}, {0.089, 0.120}, {93.30, 1.48}, {1.160, 0.155}, 74.3, 70.3},
}};

inline constexpr std::array kNames{"s1", "s2", "s3", "s4"};

inline std::string name_of(Index setting) { return kNames[static_cast<std::size_t>(setting - 1)]; }
inline std::vector<Index> settings(const Options& o) {
  std::vector<Index> all;
  for (Index s = 1; s <= 4; ++s)
    if (std::any_of(o.references.begin(), o.references.end(),
                    [s](const auto& r) { return r == "all" || r == name_of(s); }))
      all.push_back(s);
  return all;
}
inline std::string label(Index setting, const char* model, bool linear) {
  return "reference." + name_of(setting) + "." + model + (linear ? ".linear" : ".cubic");
}

inline void add(const Options& o, Jobs& jobs) {
  for (const Index s : settings(o))
    for (const bool linear : {false, true}) {
      const ReferenceRun base{s, linear, o.base.train, o.base.test, o.base.iterations, 0};
      const double cost = base.cost();
      jobs.add(label(s, "moe", linear), o.reference_seeds, [base, cost](std::uint64_t seed) {
        ReferenceRun r = base;
        r.seed = seed;
        return Run{{}, r.json("moe"), [r](const Report& report) { return train_reference(r, report); }, cost};
      });
      jobs.add(label(s, "single", linear), o.reference_seeds, [base, cost](std::uint64_t seed) {
        ReferenceRun r = base;
        r.seed = seed;
        r.epochs = r.epochs * 801 / 501;
        return Run{{}, r.json("single"), [r](const Report& report) { return train_single(r, report); }, 3 * cost};
      });
    }
}

/// Returns true if the runs have as many items and iterations as the published runs. The results of other runs are not
/// compared with published results.
inline bool of_published_size(const Setting& s) {
  const Setting published;
  return s.train == published.train && s.test == published.test && s.iterations == published.iterations;
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  const bool compared = of_published_size(o.base);
  if (!compared)
    std::printf("%lld items and %lld iterations: not the published size, so the published numbers are left out\n",
                static_cast<long long>(o.base.train), static_cast<long long>(o.base.iterations));
  std::vector<Panel> panels;
  for (const Index s : settings(o)) {
    const Published& p = kPublished[static_cast<std::size_t>(s - 1)];
    const auto add = [&](const std::string& name, const char* key, std::array<double, 2> published) {
      Result r{name + "." + key, values(jobs.of(name), key)};
      if (compared) {
        r.published = published[0];
        r.published_std = published[1];
      }
      summary.results.push_back(std::move(r));
    };
    for (const bool linear : {false, true}) {
      const std::string moe = label(s, "moe", linear), single = label(s, "single", linear);
      add(moe, "accuracy", linear ? p.linear_accuracy : p.cubic_accuracy);
      add(moe, "entropy", linear ? p.linear_entropy : p.cubic_entropy);
      summary.add(moe + ".epochs", values(jobs.of(moe), "epochs"));
      Result r{single + ".accuracy", values(jobs.of(single), "accuracy")};
      if (compared) r.published = linear ? p.single_linear : p.single_cubic;
      r.published_runs = 1;
      summary.results.push_back(std::move(r));
    }
    for (const bool linear : {false, true})
      for (const auto& [key, y_label] : {std::pair{"loss", "training loss"}, {"entropy", "dispatch entropy"}}) {
        Lines lines{.title = name_of(s) + ", 8 " + (linear ? "linear" : "cubic") + " experts, each run",
                    .x_label = "epoch",
                    .y_label = y_label,
                    .curves = {}};
        for (const Json& run : jobs.of(label(s, "moe", linear))) {
          Curve c{"", run.at("curve").at("iteration").get<std::vector<double>>(), {}, {}};
          for (const Json& v : run.at("curve").at(key)) c.y.push_back(number(v));
          summary.curves["reference"][label(s, "moe", linear)][key].push_back(c.y);
          lines.curves.push_back(std::move(c));
        }
        panels.push_back(std::move(lines));
      }
  }
  summary.draw("reference.svg", panels, 2);
}

}  // namespace studies::expert_count::reference
