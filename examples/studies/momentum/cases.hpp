#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "../language/model.hpp"
#include "../support/numbers.hpp"
#include "models.hpp"

namespace studies::momentum {

using lm::Case;
using lm::Group;
using lm::Printed;

/// All comparisons of paper 001 with their headings. The most important are first.
class Cases {
 public:
  std::vector<Case> all{};
  std::vector<Group> groups{};

  Cases(const Setting& base, Index vocabulary) : setting_(base), vocabulary_(vocabulary) {
    const HeavyBall heavy{.mu = 0.7, .gamma = 1};
    begin("Rules, a mixture in every layer", "smoe");
    add(make_switch, "smoe", "SMoE", {Plain{}}, {{35.55, 44.19}});
    add(make_switch, "heavy_ball", "heavy ball, μ 0.7, γ 1", {heavy}, {{33.46, 42.33}});
    add(make_switch, "adam", "Adam first, heavy ball after it", {AdamFirst{{}, heavy}}, {{33.25, 41.11}});
    add(make_switch, "robust", "robust", {Robust{}}, {{34.45, 42.78}});
    add(make_switch, "negative", "negative, μ −0.3", {HeavyBall{.mu = -0.3}}, {{35.09, 43.62}});
    add(make_switch, "complex", "complex, μ 0.7 exp(i π/8)", {ComplexMomentum{}}, {{33.34, 41.66}});
    add(make_switch, "nesterov", "Nesterov, μ 0.7", {Nesterov{}}, {{35.46, 43.97}});
    add(make_switch, "rms_prop", "RmsProp first, heavy ball after it", {RmsPropFirst{{}, heavy}}, {{34.25, 42.60}});
    add(make_switch, "sharpness_aware", "sharpness-aware, ρ 0.05", {SharpnessAware{}}, {{35.05, 43.44}});
    add(make_switch, "learned", "(i) μ and γ learned", {LearnedHeavyBall{}}, {{33.87, 42.32}});
    add(make_switch, "learned_gamma", "(ii) γ learned", {LearnedHeavyBall{.learn_mu = false}}, {{33.69, 41.84}});
    add(make_switch, "gamma_of_word", "(iii) γ of each word",
        {LearnedHeavyBall{.gamma = 0.5, .learn_mu = false, .step = StepSize::per_item}}, {{33.96, 42.39}});
    add(make_switch, "time_varying", "time-varying μ", {TimeVarying{}}, {{35.08, 43.97}});
    add(make_switch, "scheduled_restart", "scheduled restart", {ScheduledRestart{}}, {{35.01, 43.72}});
    add(make_switch, "zero_order_hold", "zero-order hold", {ZeroOrderHold{}}, {{34.00, 42.70}});

    begin("Half the depth", "half_smoe");
    setting_.depth = std::max<Index>(base.depth / 2, 1);
    add(make_switch, "half_smoe", "SMoE", {Plain{}}, {{84.81, 99.29}});
    add(make_switch, "half_heavy_ball", "heavy ball", {heavy}, {{86.65, 101.18}});
    add(make_switch, "half_adam", "Adam first", {AdamFirst{{}, heavy}});
    begin("Twice the depth", "deep_smoe");
    setting_.depth = 2 * base.depth;
    add(make_switch, "deep_smoe", "SMoE", {Plain{}}, {{30.33, 37.83}});
    add(make_switch, "deep_heavy_ball", "heavy ball", {heavy}, {{29.03, 36.78}});
    setting_ = base;

    begin("Dense mixtures: all experts compute each word", "dense");
    setting_.k = base.experts;
    add(make_switch, "dense", "dense", {Plain{}});
    add(make_switch, "dense_heavy_ball", "dense, heavy ball", {heavy});
    setting_ = base;

    begin("GLaM, a mixture in every other layer", "glam");
    add(make_glam, "glam", "GLaM", {Plain{}}, {{37.71, 47.61}});
    add(make_glam, "glam_heavy_ball", "heavy ball", {heavy}, {{35.29, 43.64}});
    add(make_glam, "glam_adam", "Adam first", {AdamFirst{{}, heavy}}, {{34.32, 42.81}});

    begin("The skeleton of the paper's code", "reference");
    const HeavyBall subtracted{.mu = 0.7, .gamma = -1};  // the paper's code subtracts the update rule's output
    Adam adam = Adam::reference();
    adam.gamma = -1;
    add(make_reference, "reference", "SMoE", {Plain{}}, {{35.55, 44.19}});
    add(make_reference, "reference_heavy_ball", "heavy ball", {subtracted}, {{33.46, 42.33}});
    add(make_reference, "reference_adam", "Adam first", {AdamFirst{adam, subtracted}}, {{33.25, 41.11}});

    begin("The skeleton and the initial weights of experts of the paper's code", "reference_initial");
    setting_.initial = gatefold::Initial::reference();
    add(make_reference, "reference_initial", "SMoE", {Plain{}}, {{35.55, 44.19}});
    add(make_reference, "reference_initial_heavy_ball", "heavy ball", {subtracted}, {{33.46, 42.33}});
    add(make_reference, "reference_initial_adam", "Adam first", {AdamFirst{adam, subtracted}}, {{33.25, 41.11}});

    begin("The paper's code: skeleton, initial weights, dropout 0.1, constant learning rate", "code");
    setting_.dropout = 0.1;
    setting_.floor = 1;
    add(make_reference, "code", "SMoE", {Plain{}}, {{35.55, 44.19}});
    add(make_reference, "code_heavy_ball", "heavy ball", {subtracted}, {{33.46, 42.33}});
    add(make_reference, "code_adam", "Adam first", {AdamFirst{adam, subtracted}}, {{33.25, 41.11}});
    setting_ = base;

    begin("Adam and RmsProp in every layer", "smoe", {"smoe"});
    for (const double epsilon : {1e-8, 0.1})
      add(make_switch, "adam_every_" + digits(epsilon), "Adam, ε " + digits(epsilon), {Adam{.epsilon = epsilon}});
    for (const double epsilon : {1e-8, 0.1})
      add(make_switch, "rms_prop_every_" + digits(epsilon), "RmsProp, ε " + digits(epsilon),
          {RmsProp{.epsilon = epsilon}});

    begin("Adam in the first layer: ε, at γ = 1", "smoe", {"smoe", "adam"});
    for (const double epsilon : {1e-4, 1e-2, 0.1, 1.0})
      add(make_switch, "adam_epsilon_" + digits(epsilon), "ε " + digits(epsilon),
          {AdamFirst{{.epsilon = epsilon}, heavy}});
    begin("Adam in the first layer: γ, at ε = 0.1", "smoe", {"smoe"});
    for (const double gamma : {0.3, 3.0}) {
      if (gamma == 3) groups.back().cases.push_back("adam_epsilon_0.1");
      add(make_switch, "adam_gamma_" + digits(gamma), "γ " + digits(gamma),
          {AdamFirst{{.gamma = gamma, .epsilon = 0.1}, heavy}});
    }

    begin("Momentum μ, at γ = 1", "smoe", {"smoe"});
    for (const double mu : {0.3, 0.5, 0.9}) {
      if (mu == 0.9) groups.back().cases.push_back("heavy_ball");
      add(make_switch, "mu_" + digits(mu), "μ " + digits(mu), {HeavyBall{.mu = mu, .gamma = 1}});
    }
    begin("Step γ, at μ = 0.7 and μ = 0", "smoe", {"smoe"});
    for (const double gamma : {0.3, 0.6, 1.5}) {
      if (gamma == 1.5) groups.back().cases.push_back("heavy_ball");
      add(make_switch, "gamma_" + digits(gamma), "γ " + digits(gamma), {HeavyBall{.mu = 0.7, .gamma = gamma}});
    }
    add(make_switch, "plain_gamma_0.3", "γ 0.3, μ 0", {HeavyBall{.mu = 0, .gamma = 0.3}});
  }

 private:
  void begin(const std::string& title, const std::string& baseline, const std::vector<std::string>& of_others = {}) {
    groups.push_back({title, of_others});
    baseline_ = baseline;
  }
  template <class RuleT>
  void add(std::unique_ptr<Model> (*make)(const Setting&, Index, const RuleT&, Seed), const std::string& name,
           const std::string& label, const std::type_identity_t<RuleT>& rule,
           const std::optional<Printed>& printed = {}) {
    const Index words = vocabulary_;
    all.push_back({name, label, baseline_, setting_,
                   [=](const Setting& s, Seed seed) { return make(s, words, rule, seed); }, printed});
    groups.back().cases.push_back(name);
  }

  Setting setting_;
  Index vocabulary_;
  std::string baseline_{};
};

}  // namespace studies::momentum
