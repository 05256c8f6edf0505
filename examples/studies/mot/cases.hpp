#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../support/numbers.hpp"
#include "../support/runs.hpp"
#include "options.hpp"
#include "train.hpp"

namespace studies::mot {

/// All runs of the study: one run per seed for each case. Of equal cases, only one is stored.
class Cases {
 public:
  explicit Cases(const Options& o) : options_(o) {}

  /// Adds a case.
  /// @return the number of the case. If an equal case has been added before, it is the number of that case
  std::size_t add(Model model, const Setting& setting, const std::string& difference = "") {
    const Json what = json(model, setting);
    for (std::size_t i = 0; i < cases_.size(); ++i)
      if (json(cases_[i].model, cases_[i].setting) == what) return i;
    cases_.push_back({name(model) + difference, model, setting});
    return cases_.size() - 1;
  }

  void compute() {
    std::vector<Run> runs;
    for (const Case& c : cases_)
      add_seeds(runs, c.name, options_.common.seed, options_.common.seeds, [&](std::uint64_t seed) {
        return Run{{},
                   json(c.model, c.setting),
                   [c, seed](const Report& report) { return train(c.setting, c.model, Seed{seed}, report); },
                   cost(c)};
      });
    results_ = studies::compute(options_.common, runs);
  }

  /// Returns the results of the case with this number, one per seed.
  std::vector<Json> of(std::size_t number) const {
    const auto seeds = static_cast<std::ptrdiff_t>(options_.common.seeds);
    const auto first = results_.begin() + static_cast<std::ptrdiff_t>(number) * seeds;
    return {first, first + seeds};
  }

 private:
  struct Case {
    std::string name;
    Model model;
    Setting setting;
  };
  static Json json(Model model, const Setting& setting) {
    Json j = setting.json();
    j["model"] = name(model);
    return j;
  }
  /// Returns the cost of a case relative to other cases. Measured: a head costs more than an expert, because each head
  /// computes all items.
  static double cost(const Case& c) {
    const double size = static_cast<double>(c.setting.samples) * static_cast<double>(c.setting.epochs);
    return size * (c.model == Model::multi_head         ? 1.2 * static_cast<double>(c.setting.experts)
                   : c.model == Model::attention_absent ? 0.3
                                                        : 1.0);
  }

  const Options& options_;
  std::vector<Case> cases_;
  std::vector<Json> results_;
};

/// Indices of the cases that answer each question of the study.
struct Questions {
  std::vector<std::size_t> models;                           // indexed by Model
  std::vector<std::size_t> noise_mot, noise_absent, counts;  // one case per value of options.noises or options.counts
  std::vector<Index> t1, stage2;                             // lengths of stages I and II in `grid`
  std::vector<std::vector<std::size_t>> grid;                // [t1][stage2]

  Questions(const Options& o, Cases& cases) {
    const Setting& base = o.base;
    for (const Model m : {Model::mot, Model::attention_absent, Model::ffn_level, Model::multi_head})
      models.push_back(cases.add(m, base));
    for (const double noise : o.noises) {
      Setting s = base;
      s.noise = noise;
      noise_mot.push_back(cases.add(Model::mot, s, ".noise" + digits(noise)));
      noise_absent.push_back(cases.add(Model::attention_absent, s, ".noise" + digits(noise)));
    }
    for (const Index m : o.counts) {
      Setting s = base;
      s.experts = m;
      counts.push_back(cases.add(Model::mot, s, ".m" + std::to_string(m)));
    }
    for (const double factor : o.grid) {
      t1.push_back(static_cast<Index>(factor * static_cast<double>(base.t1)));
      stage2.push_back(static_cast<Index>(factor * static_cast<double>(base.t2 - base.t1)));
    }
    for (const Index first : t1) {
      grid.emplace_back();
      for (const Index second : stage2) {
        Setting s = base;
        s.t1 = first;
        s.t2 = first + second;
        gatefold::expect(s.t2 <= s.epochs, "--grid", "T₂", gatefold::Joined{"at most T = ", s.epochs}, s.t2);
        grid.back().push_back(cases.add(Model::mot, s, ".t1_" + std::to_string(s.t1) + ".t2_" + std::to_string(s.t2)));
      }
    }
  }
};

}  // namespace studies::mot
