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
  std::function<bool(const char* option)> given = [](const char*) { return false; };  // on the command line

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
  /// Returns the numbers 8 and 16 if they are in `experts`, otherwise the first number in it. The studies whose
  /// question is not the number of experts use only these numbers.
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
              "what to show: sweep (figures 1 and 2), theorem, init, lemma1, top-k, unequal, choices, reference, "
              "data-sets, parts or all"))
      ->check(CLI::IsMember({"sweep", "theorem", "init", "lemma1", "top-k", "unequal", "choices", "reference",
                             "data-sets", "parts", "all"}));
  as_list(app.add_option("--reference", o.references, "settings of the code of Chen et al.: s1, s2, s3, s4 or all"))
      ->check(CLI::IsMember({"s1", "s2", "s3", "s4", "all"}));
  app.add_option("--expert", o.expert, "mlp (a router per patch), cnn (shared) or both")
      ->check(CLI::IsMember({"mlp", "cnn", "both"}))
      ->capture_default_str();
  app.add_option("--activation", o.base.activation, "cubic (the proofs'), linear or relu; the main text names none")
      ->check(CLI::IsMember({"cubic", "linear", "relu"}))
      ->capture_default_str();
  as_list(app.add_option("--experts", o.experts,
                         "M: experts of a layer; top-k, unequal and choices take 8 and 16 of several"))
      ->check(CLI::Range(Index(2), Index(4096)));
  as_list(app.add_option("--patches", o.patches, "P: patches of an item; all studies but sweep take the first"))
      ->check(CLI::Range(Index(3), Index(1024)));
  as_list(app.add_option("--picks", o.picks, "k of the study top-k, where M is no less"))->check(positive);
  as_list(app.add_option("--decay", o.decays, "of the study unequal: cluster k has a share ∝ decay^k"))
      ->check(above_zero());
  app.add_option("--filters", o.base.filters, "J: neurons per patch of an MLP, of a CNN in all")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--train", o.base.train, "items to learn from; the paper is silent, Chen et al. take 16000")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--test", o.base.test, "items to test with; as --train")->check(positive)->capture_default_str();
  app.add_option("--iterations", o.base.iterations, "T; the paper is silent, Chen et al. take 501")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--sigma0", o.base.sigma0,
                 "of the weights at the start; the paper is silent, Chen et al. have 0.001 U(±1/√50)")
      ->check(above_zero(true))
      ->capture_default_str();
  app.add_option("--scale", o.base.scale, "of all inputs; the paper is silent, Chen et al. take 10")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--eta", o.base.eta, "learning rate of the experts")->check(above_zero())->capture_default_str();
  app.add_option("--eta-router", o.eta_router,
                 "learning rate of the router (0: the paper's, 0.1 to M = 16, 0.25 to 32, then 0.4)")
      ->check(above_zero(true))
      ->capture_default_str();
  app.add_flag("--test-noise", o.base.test_noise,
               "route with noise in tests too, as Chen et al.; the paper's eq. (1) does not");
  app.add_option("--trials", o.trials, "of lemma 1: pairs of scores")->check(positive)->capture_default_str();
  app.add_option("--draws", o.draws, "of lemma 1: noise draws that check the exact probabilities")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--data-sets", o.data_sets,
                 "of the study data-sets: on each, --seeds runs of --reference's linear mixture")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--self-check", o.self_check, "check the program's own loss, selection and probabilities, and stop");
}

/// Sets the options that depend on other options. If --quick is given, also makes the options smaller that are not on
/// the command line. Call it after parsing.
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
