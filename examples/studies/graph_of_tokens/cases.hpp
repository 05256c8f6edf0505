#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "../language/model.hpp"
#include "../support/numbers.hpp"
#include "models.hpp"

namespace studies::graph_of_tokens {

using gatefold::FollowedHead;
using lm::Case;
using lm::Group;
using lm::Printed;

/// All comparisons of paper 002 with their headings. The most important are first.
class Cases {
 public:
  std::vector<Case> all{};
  std::vector<Group> groups{};

  Cases(const Setting& base, Index vocabulary) : setting_(base), vocabulary_(vocabulary) {
    three("SMoE", Base::smoe, "smoe", {34.84, 43.59}, {32.03, 39.92}, {32.23, 40.91});

    begin("Similarity that sees the words that follow", {"smoe", "smoe_similarity"});
    add("smoe_similarity_ahead", "similarity, not causal", make_similarity, {.causal = false});
    begin("Confident words alone (proposition 1)", {"smoe", "smoe_similarity"});
    add("smoe_similarity_confident", "similarity, confident", make_similarity, {.only_confident = true});
    groups.back().cases.push_back("smoe_attention");
    add("smoe_attention_confident", "attention, confident", make_attention, {.only_confident = true});

    begin("Learned metric W_s of the similarity", {"smoe", "smoe_similarity"});
    add("smoe_similarity_learned", "similarity, W_s learned", make_similarity, {.learned_metric = true});

    three("GLaM", Base::glam, "glam", {39.10, 49.75}, {34.92, 43.72}, {36.71, 45.85});
    three("X-MoE", Base::x_moe, "x_moe", {34.49, 42.96}, {33.06, 41.28}, {33.24, 41.73});
    three("SMoE-dropout", Base::smoe_dropout, "smoe_dropout", {34.67, 43.09}, {33.69, 41.99}, {33.91, 42.17});

    base_ = Base::smoe;
    baseline_ = "smoe";
    const double root = std::sqrt(static_cast<double>(base.dim));
    begin("Temperature τ of the similarity", {"smoe", "smoe_similarity"});
    add("smoe_tau_0.1", "τ 0.1", make_similarity, {.tau = 0.1}, {{34.01, 0}});
    add("smoe_tau_2", "τ 2", make_similarity, {.tau = 2}, {{32.88, 0}});
    add("smoe_tau_root", "τ √D", make_similarity, {.tau = root}, {{33.83, 0}});
    begin("Temperature τ that changes during training", {"smoe", "smoe_similarity"});
    add("smoe_tau_falls", "τ from 10 to 0.01", make_similarity, {.tau = 10, .last_tau = 0.01}, {{34.65, 43.08}});
    add("smoe_tau_rises", "τ from 0.01 to 10", make_similarity, {.tau = 0.01, .last_tau = 10}, {{33.91, 41.67}});
    begin("Width σ of the likelihood", {"smoe", "smoe_attention"});
    add("smoe_sigma_0.1", "σ 0.1", make_attention, {.sigma = 0.1}, {{32.67, 0}});
    add("smoe_sigma_2", "σ 2", make_attention, {.sigma = 2}, {{32.85, 0}});
    add("smoe_sigma_root", "σ √D", make_attention, {.sigma = root}, {{32.90, 0}});

    begin("Readings of attention-aware routing", {"smoe", "smoe_attention"});
    add("smoe_attention_v_o", "m = v O", make_attention, {.mean_of_heads = false});
    add("smoe_attention_of_sequence", "one head per sequence, m = v O", make_attention,
        {.head = FollowedHead::lowest_entropy_of_sequence, .mean_of_heads = false});
    add("smoe_attention_weights", "A instead of the posterior", make_attention,
        {.sigma = std::numeric_limits<double>::infinity()});
    add("smoe_attention_every", "all heads, exact posterior, m = v O", make_attention,
        {.head = FollowedHead::every, .mean_of_heads = false});

    setting_.k = 1;
    three("K = 1", Base::smoe, "k_1", {40.75, 50.21}, {39.18, 48.66}, {39.35, 48.72});
    setting_.k = std::min<Index>(8, base.experts / 2);
    three("K = E/2", Base::smoe, "k_half", {34.92, 42.98}, {33.81, 42.37}, {33.28, 41.45});
    setting_ = base;
    setting_.experts = 2 * base.experts;
    three("Twice the experts", Base::smoe, "e_twice", {33.41, 41.79}, {31.62, 39.77}, {31.85, 39.65});
    setting_ = base;

    setting_.steps = std::min<Index>(base.steps, 500);
    setting_.k = base.experts;
    begin("All experts, 500 steps");
    baseline_ = "dense";
    add("dense", "all experts", make_independent, {});
    add("dense_similarity", "all experts, similarity", make_similarity, {});
    add("dense_attention", "all experts, attention", make_attention, {});
    setting_.k = base.k;
    // These cases combine the update rules of paper 001 with the gates of paper 002.
    rules("gate_softmax", "softmax", Base::smoe, make_independent);
    rules("gate_similarity", "similarity", Base::smoe, make_similarity);
    rules("gate_attention", "attention", Base::smoe, make_attention);
    rules("gate_cosine", "cosine (X-MoE)", Base::x_moe, make_independent);
    rules("gate_fixed", "fixed (SMoE-dropout)", Base::smoe_dropout, make_independent);
    setting_ = base;
  }

 private:
  using Make = std::unique_ptr<Model>(const Parts&, const Setting&, Index, Seed);

  void begin(const std::string& title, const std::vector<std::string>& of_others = {}) {
    groups.push_back({title, of_others});
  }
  void three(const std::string& title, Base base, const std::string& name, const Printed& plain,
             const Printed& similarity, const Printed& attention) {
    begin(title);
    base_ = base;
    baseline_ = name;
    add(name, title, make_independent, {}, plain);
    add(name + "_similarity", title + ", similarity", make_similarity, {}, similarity);
    add(name + "_attention", title + ", attention", make_attention, {}, attention);
  }
  void rules(const std::string& name, const std::string& gate, Base base, Make* make) {
    using namespace gatefold::update;
    const HeavyBall heavy{.mu = 0.7, .gamma = 1};
    begin("Rules with the gate " + gate + ", 500 steps");
    base_ = base;
    baseline_ = name;
    rule_ = {Plain{}};
    add(name, gate, make, {});
    rule_ = {heavy};
    add(name + "_heavy_ball", gate + ", heavy ball", make, {});
    rule_ = {AdamFirst{{.epsilon = 0.1}, heavy}};
    add(name + "_adam", gate + ", Adam first, ε 0.1", make, {});
    rule_ = {Robust{}};
    add(name + "_robust", gate + ", robust", make, {});
    rule_ = {};
  }
  void add(const std::string& name, const std::string& label, Make* make, const Mixing& mixing,
           const std::optional<Printed>& printed = {}) {
    const Parts parts{base_, mixing, rule_};
    const Index words = vocabulary_;
    all.push_back({name, label, baseline_, setting_,
                   [=](const Setting& s, Seed seed) { return make(parts, s, words, seed); }, printed});
    groups.back().cases.push_back(name);
  }

  Setting setting_;
  Index vocabulary_;
  Base base_ = Base::smoe;
  Rule rule_{};
  std::string baseline_{};
};

}  // namespace studies::graph_of_tokens
