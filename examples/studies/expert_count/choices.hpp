#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "summary.hpp"

/// Measures how much the results depend on each choice that paper 003 leaves open. Each run changes one choice.
namespace studies::expert_count::choices {

inline std::vector<std::pair<std::string, Setting>> variants(const Options& o, const std::string& kind) {
  const Setting base = o.setting(kind, o.patches.front(), o.few_experts().back());
  std::vector<std::pair<std::string, Setting>> all{{"", base}};
  const auto with = [&](const std::string& name, auto&& change) {
    all.emplace_back(name, base);
    change(all.back().second);
  };
  with(".sigma0_theorem", [](Setting& s) { s.sigma0 = std::cbrt(1.0 / kDim); });  // the least σ₀ of Theorem 1
  with(".scale1", [](Setting& s) { s.scale = 1; });
  with(".iterations_x4", [](Setting& s) { s.iterations *= 4; });
  with(".train_quarter", [](Setting& s) { s.train = std::max<Index>(1, s.train / 4); });
  with(".test_noise", [](Setting& s) { s.test_noise = !s.test_noise; });
  with(".linear", [](Setting& s) { s.activation = "linear"; });
  with(".relu", [](Setting& s) { s.activation = "relu"; });
  return all;
}

inline void add(const Options& o, Jobs& jobs) {
  for (const auto& kind : o.kinds())
    for (const auto& [name, s] : variants(o, kind)) jobs.add(s.label() + name, s);
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  HeatMap map{
      .title = "choices the paper leaves open", .x_label = "", .y_label = "", .columns = {}, .rows = {}, .values = {}};
  for (const auto& kind : o.kinds()) {
    const auto all = variants(o, kind);
    for (const char* key : {"accuracy", "entropy"}) map.columns.push_back(kind + " " + key);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string name = all[i].first.empty() ? ".default" : all[i].first;
      if (map.rows.size() == i) {
        map.rows.push_back(name.substr(1));
        map.values.emplace_back();
      }
      for (const char* key : {"accuracy", "entropy"}) {
        const auto of_seeds = values(jobs.of(all[i].second.label() + all[i].first), key);
        summary.add("choices." + all[i].second.label() + name + "." + key, of_seeds);
        map.values[i].push_back(mean(of_seeds));
      }
    }
  }
  summary.curves["choices"] = {{"columns", map.columns}, {"rows", map.rows}, {"values", map.values}};
}

}  // namespace studies::expert_count::choices
