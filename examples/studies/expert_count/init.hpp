#pragma once

#include <string>
#include <vector>

#include "summary.hpp"
#include "theorem.hpp"

/// Tests Lemmas 2 and 3 of paper 003. Compares initial weights that are equal at all patches with weights that are
/// drawn independently for each patch.
namespace studies::expert_count::init {

inline Setting independent(Setting s) {
  s.equal_patches = false;
  return s;
}

inline void add(const Options& o, Jobs& jobs) {
  for (const Index m : o.experts) {
    const Setting s = o.setting("mlp", o.patches.front(), m);
    jobs.add(s.label(), s);
    jobs.add(s.label() + ".independent", independent(s));
  }
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  std::vector<Panel> panels;
  std::vector<std::string> equal, apart;
  for (const Index m : o.experts) {
    const std::string label = o.setting("mlp", o.patches.front(), m).label();
    equal.push_back(label);
    apart.push_back(label + ".independent");
    theorem::report_stages(jobs, label, "lemma2." + label, summary);
    theorem::report_stages(jobs, label + ".independent", "lemma3." + label, summary);
    for (const char* key : {"accuracy", "entropy"}) {
      summary.add("lemma2." + label + "." + key, values(jobs.of(label), key));
      summary.add("lemma3." + label + "." + key, values(jobs.of(label + ".independent"), key));
    }
  }
  for (const std::string at : {"t1", "end"}) {
    if (!jobs.of(equal.front()).front().at("experts").contains(at)) continue;
    Lines lines{.title = at == "t1" ? "at T1" : "at the end",
                .x_label = "experts M",
                .y_label = "error of an expert",
                .log_x = true,
                .curves = {}};
    for (const auto& [labels, name] : {std::pair{&equal, std::string("equal")}, {&apart, std::string("independent")}}) {
      Curve best{name + ", best cluster", {}, {}}, other{name + ", others", {}, {}};
      for (std::size_t i = 0; i < labels->size(); ++i) {
        std::vector<double> of_best, of_other;
        for (const Json& run : jobs.of((*labels)[i])) {
          const auto errors = matrix(run.at("experts").at(at).at("errors"));
          std::vector<std::size_t> own;
          for (const auto& of_clusters : errors) own.push_back(theorem::lowest(of_clusters));
          const theorem::Stage s = theorem::stage(errors, own);
          of_best.push_back(s.own);
          of_other.push_back(s.other);
        }
        best.add(static_cast<double>(o.experts[i]), of_best);
        other.add(static_cast<double>(o.experts[i]), of_other);
      }
      lines.curves.push_back(std::move(best));
      lines.curves.push_back(std::move(other));
    }
    panels.push_back(std::move(lines));
  }
  Lines layer = accuracy_panel("layer", "experts M");
  layer.log_x = true;
  layer.curves = {curve(jobs, "equal", as_doubles(o.experts), equal, "accuracy"),
                  curve(jobs, "independent", as_doubles(o.experts), apart, "accuracy")};
  panels.push_back(std::move(layer));
  summary.draw("init.svg", panels, 2);
}

}  // namespace studies::expert_count::init
