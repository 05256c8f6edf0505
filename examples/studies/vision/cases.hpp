#pragma once

#include <string>
#include <vector>

#include "../../vision/options.hpp"
#include "../support/backend.hpp"
#include "../support/run.hpp"

namespace studies::vision {

/// One model of the study.
struct Case {
  std::string name;      // characters: a-z 0-9 _ . -
  std::string label;     // name in tables
  std::string baseline;  // name of the case to compare with; can be its own name
  std::string router, update;
};

/// Returns the cases of papers 001 and 002 on images: update rules around V-MoE's mixtures, V-MoE's gate with the
/// papers' mixings, and Soft MoE.
inline const std::vector<Case>& cases() {
  static const std::vector<Case> all{{"vmoe", "V-MoE", "vmoe", "vmoe", "plain"},
                                     {"vmoe_heavy_ball", "V-MoE, heavy ball", "vmoe", "vmoe", "heavy-ball"},
                                     {"vmoe_robust", "V-MoE, robust momentum", "vmoe", "vmoe", "robust"},
                                     {"vmoe_similarity", "V-MoE, similarity-aware", "vmoe", "similarity", "plain"},
                                     {"vmoe_attention", "V-MoE, attention-aware", "vmoe", "attention", "plain"},
                                     {"soft", "Soft MoE", "soft", "soft", "plain"},
                                     {"soft_heavy_ball", "Soft MoE, heavy ball", "soft", "soft", "heavy-ball"}};
  return all;
}

/// Returns the name of the case whose errors under corruption are the baseline: softmax regression on the pixels. No
/// table has a row for this case.
inline const std::string& baseline_of_errors() {
  static const std::string name = "linear";
  return name;
}

/// Returns all values, except the seed, that the result of a case depends on.
inline Json depends_on(const Case& c, const images::Options& o) {
  Json options{{"case", c.name}};
  images::Options::each_of_run([&](const char* name, const auto& value) { options[name] = value; }, o);
  options.update(
      {{"data", o.data}, {"test-images", o.test_images}, {"epsilon", o.epsilon}, {"attack-steps", o.attack_steps}});
  // The study leaves these options at their defaults, except the backend, which note_backend() adds. They are not
  // stored, so that results from before these options existed stay valid.
  for (const char* of_other_runs : {"backend", "log", "validate", "flip", "crop", "mixup", "label-smoothing"})
    options.erase(of_other_runs);
  note_backend(options, o.backend);
  options["seed"] = nullptr;
  return options;
}

}  // namespace studies::vision
