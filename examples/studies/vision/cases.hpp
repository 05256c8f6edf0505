#pragma once

#include <string>
#include <vector>

#include "../../vision/options.hpp"
#include "../support/backend.hpp"
#include "../support/run.hpp"

namespace studies::vision {

/// One model of the study.
struct Case {
  std::string name;      // of [a-z0-9_.-]
  std::string label;     // in tables
  std::string baseline;  // name of the case that it is compared with by seed, or its own name
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

/// Returns the name of the baseline of errors under corruption: softmax regression on the pixels. It is a case like the
/// others, but in no table.
inline const std::string& baseline_of_errors() {
  static const std::string name = "linear";
  return name;
}

/// Returns the values that the result of a case depends on besides its seed.
inline Json depends_on(const Case& c, const images::Options& o) {
  Json options{{"case", c.name}};
  images::Options::each_of_run([&](const char* name, const auto& value) { options[name] = value; }, o);
  options.update(
      {{"data", o.data}, {"test-images", o.test_images}, {"epsilon", o.epsilon}, {"attack-steps", o.attack_steps}});
  for (const char* of_other_runs : {"backend", "log", "validate"}) options.erase(of_other_runs);
  note_backend(options, o.backend);
  options["seed"] = nullptr;
  return options;
}

}  // namespace studies::vision
