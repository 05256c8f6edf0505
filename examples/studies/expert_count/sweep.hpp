#pragma once

#include <string>
#include <vector>

#include "summary.hpp"

/// Repeats figures 1 and 2 of the paper: accuracy and dispatch entropy against the number of experts.
namespace studies::expert_count::sweep {

inline void add(const Options& o, Jobs& jobs) {
  for (const auto& kind : o.kinds())
    for (const Index p : o.patches)
      for (const Index m : o.experts) {
        const Setting s = o.setting(kind, p, m);
        jobs.add(s.label(), s);
      }
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  std::vector<Panel> accuracy, entropy, training;
  for (const auto& kind : o.kinds()) {
    const std::string title = kind == "mlp" ? "MoE with MLP experts" : "MoE with CNN experts";
    Lines of_accuracy = accuracy_panel(title, "experts M"), of_entropy = entropy_panel(title, "experts M");
    of_accuracy.log_x = of_entropy.log_x = true;
    for (const Index p : o.patches) {
      std::vector<std::string> labels;
      for (const Index m : o.experts) labels.push_back(o.setting(kind, p, m).label());
      for (const std::string& label : labels) {
        for (const char* key : {"accuracy", "entropy", "train_accuracy", "train_entropy"})
          summary.add(label + "." + key, values(jobs.of(label), key));
        for (const char* key : {"loss", "accuracy", "entropy"})
          summary.curves["training"][label][key] = json(course(jobs.of(label), label, key));
      }
      const std::string of_p = "P = " + std::to_string(p);
      of_accuracy.curves.push_back(curve(jobs, of_p, as_doubles(o.experts), labels, "accuracy"));
      of_entropy.curves.push_back(curve(jobs, of_p, as_doubles(o.experts), labels, "entropy"));
      for (auto [key, lines] : {std::pair{"accuracy", accuracy_panel(title + ", " + of_p, "iteration")},
                                {"entropy", entropy_panel(title + ", " + of_p, "iteration")}}) {
        for (std::size_t i = 0; i < labels.size(); ++i)
          lines.curves.push_back(course(jobs.of(labels[i]), "M = " + std::to_string(o.experts[i]), key));
        training.push_back(std::move(lines));
      }
    }
    accuracy.push_back(std::move(of_accuracy));
    entropy.push_back(std::move(of_entropy));
  }
  summary.draw("accuracy.svg", accuracy, 2);
  summary.draw("entropy.svg", entropy, 2);
  summary.draw("training.svg", training, 2);
}

}  // namespace studies::expert_count::sweep
