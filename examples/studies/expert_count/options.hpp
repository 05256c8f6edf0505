#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <functional>
#include <gatefold/core/error.hpp>
#include <string>
#include <vector>

#include "../support/common.hpp"
#include "setting.hpp"

namespace studies::expert_count {

/// The command line.
struct Options {
  Common common;
  std::vector<std::string> studies{"sweep"}, references{};
  std::string expert = "both";
  std::vector<Index> experts{4, 8, 16, 32, 64}, patches{4, 8}, picks{1, 2, 4};
  std::vector<double> decays{1, 0.7, 0.5};
  Setting base{};         // defaults of every run; each study changes some
  double eta_router = 0;  // learning rate of the router; 0: the paper's rate
  Index trials = 2000, draws = 100000;
  Index reference_seeds = 10, data_sets = 5;
  bool self_check = false;
  // Returns true if the option is on the command line.
  std::function<bool(const char* option)> given = [](const char*) { return false; };

  std::vector<std::string> kinds() const {
    return expert == "both" ? std::vector<std::string>{"mlp", "cnn"} : std::vector<std::string>{expert};
  }
  Setting setting(const std::string& kind, Index patch_count, Index expert_count) const {
    Setting s = base;
    s.expert = kind;
    s.patches = patch_count;
    s.experts = expert_count;
    s.eta_router = eta_router > 0 ? eta_router : Setting::paper_eta_router(expert_count);
    return s;
  }
  /// Returns the numbers 8 and 16 as far as `experts` contains them. If it contains neither, returns its first number.
  /// The studies whose question is not the number of experts use only these numbers.
  std::vector<Index> few_experts() const {
    std::vector<Index> few;
    for (const Index m : experts)
      if (m == 8 || m == 16) few.push_back(m);
    return few.empty() ? std::vector<Index>{experts.front()} : few;
  }
};

inline void add_options(CLI::App& app, Options& o) {
  add_common(app, o.common);
  const auto positive = CLI::Range(Index(1), Index(1) << 24);
  as_list(app.add_option(
              "--study", o.studies,
              "studies to run: sweep (figures 1 and 2), theorem, init, lemma1, top-k, unequal, choices, reference, "
              "data-sets, parts or all"))
      ->check(CLI::IsMember({"sweep", "theorem", "init", "lemma1", "top-k", "unequal", "choices", "reference",
                             "data-sets", "parts", "all"}));
  as_list(app.add_option("--reference", o.references,
                         "settings of the code of Chen et al. to repeat: s1, s2, s3, s4 or all"))
      ->check(CLI::IsMember({"s1", "s2", "s3", "s4", "all"}));
  app.add_option("--expert", o.expert, "experts: mlp (a router per patch), cnn (one router for all patches) or both")
      ->check(CLI::IsMember({"mlp", "cnn", "both"}))
      ->capture_default_str();
  app.add_option("--activation", o.base.activation,
                 "activation: cubic (as in the proofs), linear or relu; the main text of the paper names none")
      ->check(CLI::IsMember({"cubic", "linear", "relu"}))
      ->capture_default_str();
  as_list(
      app.add_option("--experts", o.experts,
                     "M: numbers of experts; top-k and unequal use only 8 and 16 (if absent: the first), choices the "
                     "last of these"))
      ->check(CLI::Range(Index(2), Index(4096)));
  as_list(app.add_option("--patches", o.patches,
                         "P: numbers of patches of an item; studies other than sweep use only the first"))
      ->check(CLI::Range(Index(3), Index(1024)));
  as_list(app.add_option("--picks", o.picks, "k: picks per item in the study top-k; values above M are skipped"))
      ->check(positive);
  as_list(app.add_option("--decay", o.decays,
                         "decays in the study unequal: the share of cluster k is proportional to decay^k"))
      ->check(above_zero());
  app.add_option("--filters", o.base.filters, "J: neurons of an expert, per patch in an MLP, in total in a CNN")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--train", o.base.train, "number of training items (not in the paper; Chen et al.: 16000)")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--test", o.base.test, "number of test items (not in the paper; Chen et al.: 16000)")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--iterations", o.base.iterations, "T: training iterations (not in the paper; Chen et al.: 501)")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--sigma0", o.base.sigma0,
                 "standard deviation of the initial weights (not in the paper; Chen et al.: 0.001 U(±1/√50))")
      ->check(above_zero(true))
      ->capture_default_str();
  app.add_option("--scale", o.base.scale, "factor of all inputs (not in the paper; Chen et al.: 10)")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--eta", o.base.eta, "learning rate of the experts")->check(above_zero())->capture_default_str();
  app.add_option("--eta-router", o.eta_router,
                 "learning rate of the router (0: as in the paper, 0.1 up to M = 16, 0.25 up to 32, otherwise 0.4)")
      ->check(above_zero(true))
      ->capture_default_str();
  app.add_flag("--test-noise", o.base.test_noise,
               "add noise to the router also in tests, as Chen et al. do; eq. (1) of the paper has no noise");
  app.add_option("--trials", o.trials, "pairs of score vectors in the study lemma1, for each size of their difference")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--draws", o.draws, "draws of the noise in the study lemma1, which check the exact probabilities")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--data-sets", o.data_sets,
                 "data sets in the study data-sets, with --seeds runs of the linear mixture of --reference on each")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--self-check", o.self_check,
               "check the loss, selection and probabilities that this program computes, and exit");
}

/// Sets the options that depend on other options. If --quick is given, also reduces sizes that are not set on the
/// command line. Call settle() after parsing.
inline void settle(const CLI::App& app, Options& o) {
  o.given = [&app](const char* option) { return app.count(option) > 0; };
  if (!o.references.empty()) {
    if (app.count("--study") == 0) o.studies.clear();
    const bool alone = o.studies.size() == 1 && (o.studies[0] == "data-sets" || o.studies[0] == "parts");
    if (!alone) o.studies.push_back("reference");
  } else {
    o.references = {"s1"};
  }
  if (app.count("--seeds") > 0) o.reference_seeds = o.common.seeds;
  if (!o.common.quick) return;
  unless_given(app, "--experts", o.experts, {4, 8, 16});
  unless_given(app, "--patches", o.patches, {4});
  unless_given(app, "--train", o.base.train, 2000);
  unless_given(app, "--test", o.base.test, 2000);
  unless_given(app, "--iterations", o.base.iterations, 301);
  unless_given(app, "--trials", o.trials, 200);
  unless_given(app, "--data-sets", o.data_sets, 2);
  if (app.count("--seeds") == 0) o.common.seeds = o.reference_seeds = 2;
}

}  // namespace studies::expert_count
