#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "summary.hpp"

/// Tests two questions from the outlook of paper 003: more than one pick per item, and clusters of unequal size.
namespace studies::expert_count::outlook {

/// Returns the values of --picks that are at most the number of experts.
/// @throws ArgumentError if all of them are larger
inline std::vector<Index> picks(const Options& o, Index experts) {
  std::vector<Index> fit;
  for (const Index k : o.picks)
    if (k <= experts) fit.push_back(k);
  gatefold::expect(!fit.empty(), "options", "--picks",
                   gatefold::Joined{"a value of at most ", experts, " (the number of experts)"}, o.picks.front());
  return fit;
}
inline std::pair<std::string, Setting> with_picks(Setting s, Index k) {
  s.k = k;
  return {s.label() + (k > 1 ? ".top" + std::to_string(k) : ""), s};
}
inline std::pair<std::string, Setting> with_decay(Setting s, double decay) {
  s.decay = decay;
  return {s.label() + (decay == 1 ? "" : ".decay" + digits(decay)), s};
}

inline void add_picks(const Options& o, Jobs& jobs) {
  for (const auto& kind : o.kinds())
    for (const Index m : o.few_experts())
      for (const Index k : picks(o, m)) {
        const auto [label, s] = with_picks(o.setting(kind, o.patches.front(), m), k);
        jobs.add(label, s);
      }
}
inline void add_decays(const Options& o, Jobs& jobs) {
  for (const auto& kind : o.kinds())
    for (const Index m : o.few_experts())
      for (const double decay : o.decays) {
        const auto [label, s] = with_decay(o.setting(kind, o.patches.front(), m), decay);
        jobs.add(label, s);
      }
}

inline void report_picks(const Options& o, const Jobs& jobs, StudySummary& summary) {
  Lines accuracy = accuracy_panel("top-k gate", "picks k"), entropy = entropy_panel("top-k gate", "picks k");
  accuracy.log_x = entropy.log_x = true;
  for (const auto& kind : o.kinds())
    for (const Index m : o.few_experts()) {
      const Setting base = o.setting(kind, o.patches.front(), m);
      std::vector<std::string> labels;
      for (const Index k : picks(o, m)) {
        labels.push_back(with_picks(base, k).first);
        for (const char* key : {"accuracy", "entropy"})
          summary.add("top_k." + base.label() + ".k" + std::to_string(k) + "." + key,
                      values(jobs.of(labels.back()), key));
      }
      const std::string title = kind + ", M = " + std::to_string(m);
      accuracy.curves.push_back(curve(jobs, title, as_doubles(picks(o, m)), labels, "accuracy"));
      entropy.curves.push_back(curve(jobs, title, as_doubles(picks(o, m)), labels, "entropy"));
    }
  summary.draw("top_k.svg", {accuracy, entropy}, 2);
}

inline void report_decays(const Options& o, const Jobs& jobs, StudySummary& summary) {
  Lines accuracy = accuracy_panel("unequal clusters", "share of cluster k over that of k − 1"), smallest = accuracy;
  smallest.y_label = "accuracy on the smallest cluster, %";
  for (const auto& kind : o.kinds())
    for (const Index m : o.few_experts()) {
      const Setting base = o.setting(kind, o.patches.front(), m);
      std::vector<std::string> labels;
      Curve last{kind + ", M = " + std::to_string(m), {}, {}};
      for (const double decay : o.decays) {
        labels.push_back(with_decay(base, decay).first);
        const auto runs = jobs.of(labels.back());
        const std::string name = "unequal." + base.label() + ".decay" + digits(decay);
        for (const char* key : {"accuracy", "entropy"}) summary.add(name + "." + key, values(runs, key));
        const std::size_t k = decay <= 1 ? kClusters - 1 : 0;
        const auto of_smallest =
            numbers(runs, [k](const Json& run) { return number(run.at("cluster_accuracy").at(k)); });
        last.add(decay, of_smallest);
        summary.add(name + ".smallest_cluster_accuracy", of_smallest);
      }
      accuracy.curves.push_back(curve(jobs, last.title, o.decays, labels, "accuracy"));
      smallest.curves.push_back(std::move(last));
    }
  summary.draw("unequal.svg", {accuracy, smallest}, 2);
}

}  // namespace studies::expert_count::outlook
