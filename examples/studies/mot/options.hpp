#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <gatefold/core/error.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "../support/common.hpp"
#include "../support/runs.hpp"

namespace studies::mot {

/// The values that a run depends on besides its model and seed.
struct Setting {
  Index classes = 4, dim = 50, length = 8, experts = 16, samples = 1024, test = 1024;
  double noise = 0.5, start = 0.1, eta = 0.1, eta_attention = 16, eta_router = 25.6, eta_multi_head = 0;
  Index t1 = 50, t2 = 250, epochs = 800, every = 10;

  /// Calls f(option, value, symbol, description, reason for the default) for each value. Used to make the command line,
  /// the list for `--defaults`, and the stored options of the runs.
  template <class S, class F>
  static void each(S& s, F&& f) {
    f("--classes", s.classes, "N", "number of classes",
      "as in paper 003 and Chen et al. 2022, which have the same data");
    f("--dim", s.dim, "d", "width of a token, at least 2 N",
      "as in paper 003 and Chen et al. 2022; N centers and N signals need 2N <= d");
    f("--length", s.length, "L", "tokens of an item, at least 3",
      "the three tokens of center and signals are among more tokens of noise");
    f("--experts", s.experts, "M", "number of experts, and of heads of the transformer without a router",
      "about 3 N ln N: algorithm 1 asks for Ω(N ln N)");
    f("--samples", s.samples, "K", "number of training items",
      "64 N²: of the order N² of lemma 10, and about 5 d items of every class");
    f("--test", s.test, "", "number of test items",
      "fresh items for the expected loss; the standard error of an accuracy of 0.98 is 0.004");
    f("--noise", s.noise, "σ_ξ", "length (norm) of a noise token",
      "O(1); the L − 3 tokens of noise together are about as long as a signal");
    f("--start", s.start, "σ₀", "scale of the initial weights",
      "O(1); the claims distinguish between σ₀, √σ₀ = 0.32 and 1, and these values are far enough apart");
    f("--eta", s.eta, "η", "learning rate in stages I and III",
      "a third of √σ₀, which is the margin that steps of this length reach in stage I; stage III has the same rate");
    f("--eta-attention", s.eta_attention, "η_a", "learning rate in stage II",
      "M, not the paper's O(1), because eq. (9) averages over all K items, but an expert gets only K / M of them. "
      "The transformer without a router, and the attention for all experts, get all K items and have the same rate");
    f("--eta-router", s.eta_router, "η_r", "learning rate of the router",
      "M² η, not the paper's Θ(η) or O(1), because the router's gradient is O(1 / M²) (lemma 12). With this rate, "
      "scores are M² times as large as in the proof: of order M instead of 1 / M");
    f("--eta-multi-head", s.eta_multi_head, "",
      "learning rate in stages I and III of the model without a router (0: η / (M √M))",
      "0: η / (M √M), with which a step of stage I moves the output f as far as a step of MoT, because the outputs of "
      "the heads are summed");
    f("--t1", s.t1, "T₁", "last epoch of stage I, in which experts learn without their attention",
      "η⁻¹ √σ₀ M = 51 (end of appendix C; proposition 1 prints 1 / √σ₀)");
    f("--t2", s.t2, "T₂", "last epoch of stage II, in which the attention of the experts learns",
      "T₁ + 200: an attention score grows by η_a |ℓ'| p (1 − p) √σ₀ / M = 0.014 per epoch, and p rises from 1/8 to "
      "1/2 if the score grows by 2; proposition 2 prints M / (η_a N √σ₀) = 0.8");
    f("--epochs", s.epochs, "T", "last epoch of stage III, in which the weights outside attention learn again",
      "stage III is more than twice as long as stages I and II together");
    f("--every", s.every, "", "epochs between two measurements", "epochs between two measurements");
  }

  Json json() const {
    Json j = Json::object();
    each(*this, [&](const std::string& option, const auto& value, const char*, const char*, const char*) {
      j[option.substr(2)] = value;
    });
    return j;
  }
};

/// The command line.
struct Options {
  Common common;
  Setting base{};
  // `noises` has values below and above 1/L = 0.125. Below 1/L, the bound of lemma 1 is no floor of the loss.
  std::vector<double> noises{0, 0.05, 0.1, 0.25, 0.5, 1, 2}, grid{0.5, 1, 2};
  std::vector<Index> counts{1, 2, 4, 8, 12, 16, 32};
  std::vector<double> router_rates{};  // rates to compare; if empty, the whole study runs
  std::vector<Index> growing{};        // numbers of experts M to compare; if empty, the whole study runs
  bool variants = false;               // if true, only MoT and its variants are trained
  Index floor = 0;                     // epochs of the study `floor`; if 0, the whole study runs
  bool defaults = false;

  Json json() const {
    Json j = base.json();
    j.update({{"noises", noises}, {"counts", counts}, {"grid", grid}, {"seed", common.seed}, {"seeds", common.seeds}});
    return j;
  }
};

inline void add_options(CLI::App& app, Options& o) {
  add_common(app, o.common);
  Setting::each(o.base, [&](const char* option, auto& value, const std::string& symbol, const std::string& what,
                            const char*) {
    auto* added = app.add_option(option, value, symbol.empty() ? what : symbol + ": " + what)->capture_default_str();
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, Index>) {
      const bool may_be_none = &value == &o.base.t1 || &value == &o.base.t2;
      added->check(CLI::Range(Index(may_be_none ? 0 : 1), Index(1) << 24));
    } else {
      added->check(command_line::within(0, 1e6));
    }
  });
  as_list(app.add_option("--noises", o.noises, "lengths σ_ξ of noise tokens to compare (lemma 1)"))
      ->check(command_line::within(0, 1e6));
  as_list(app.add_option("--counts", o.counts, "numbers of experts M to compare"))
      ->check(CLI::Range(Index(1), Index(1) << 16));
  as_list(app.add_option("--grid", o.grid, "factors of T₁ and of T₂ − T₁; each pair of factors is one case"))
      ->check(command_line::within(0, 1e6));
  as_list(app.add_option("--router-rates", o.router_rates,
                         "train only MoT, with each of these learning rates η_r of the router (without values: η to "
                         "4 M² η)"))
      ->check(above_zero())
      ->expected(0, 1 << 10)
      ->default_str("0.1,0.4,1.6,6.4,25.6,102.4");
  app.add_option("--floor", o.floor,
                 "train only the model without attention, for this many epochs with each of --noises (0: full study)")
      ->check(CLI::Range(Index(0), Index(1) << 24))
      ->capture_default_str();
  as_list(app.add_option("--growing", o.growing,
                         "train only MoT, with each of these numbers of experts M and two lengths of stages I and II: "
                         "fixed, and proportional to M (without values: 4 to 32)"))
      ->check(CLI::Range(Index(1), Index(1) << 16))
      ->expected(0, 1 << 10)
      ->default_str("4,8,16,32");
  app.add_flag("--variants", o.variants,
               "train only MoT and its variants: keys, queries and values that are not merged; a router that reads "
               "embedded tokens");
  app.add_flag("--defaults", o.defaults, "print the defaults with their reasons, and exit");
}

/// Applies --quick to options that were not given. Call it after parsing.
/// @throws gatefold::ArgumentError if the stages are out of order
inline void settle(const CLI::App& app, Options& o) {
  if (o.common.quick) {
    unless_given(app, "--seeds", o.common.seeds, 2);
    unless_given(app, "--samples", o.base.samples, 384);
    unless_given(app, "--test", o.base.test, 384);
    unless_given(app, "--t1", o.base.t1, 20);
    unless_given(app, "--t2", o.base.t2, 60);
    unless_given(app, "--epochs", o.base.epochs, 120);
    unless_given(app, "--noises", o.noises, {0, 0.5, 2});
    unless_given(app, "--counts", o.counts, {4, 16});
    unless_given(app, "--grid", o.grid, {0.5, 1});
  }
  using gatefold::expect;
  using gatefold::Joined;
  const Setting& s = o.base;
  expect(s.t2 >= s.t1, "--t2", "T₂", Joined{"at least T₁ = ", s.t1}, s.t2);
  expect(s.epochs >= s.t2, "--epochs", "T", Joined{"at least T₂ = ", s.t2}, s.epochs);
  if (o.floor > 0) expect(o.floor >= s.t2, "--floor", "T", Joined{"at least T₂ = ", s.t2}, o.floor);
}

inline void print_defaults() {
  const Setting defaults;
  Setting::each(defaults,
                [](const char* option, const auto& value, const std::string& symbol, const char*, const char* why) {
                  // Symbols have characters of several bytes, which printf's padding would count wrongly.
                  std::size_t shown = 0;
                  for (const char c : symbol) shown += (c & 0xC0) != 0x80;
                  std::printf("%-17s %s%*s %6s  %s\n", option, symbol.c_str(), static_cast<int>(4 - shown), "",
                              Json(value).dump().c_str(), why);
                });
  std::puts(
      "\nThe orders of M, K, σ₀ and T₁ are from the paper; the orders of η_a, η_r and T₂ − T₁ are not. The constants\n"
      "were chosen after about thirty single runs with other noise, initial weights, sizes, rates and T₁, and with\n"
      "seeds 1 and 2. In none of them did more than 54 % of the items go to an expert that is specialised in their\n"
      "class.");
}

}  // namespace studies::mot
