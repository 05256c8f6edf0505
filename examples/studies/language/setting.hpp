#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <gatefold/core/error.hpp>
#include <gatefold/policy/options.hpp>
#include <string>
#include <type_traits>

#include "../support/backend.hpp"
#include "../support/common.hpp"
#include "../support/run.hpp"

namespace studies::lm {

/// The size of all models of a study, their training and their backend. Depth and number of experts are those of the
/// medium model in papers 001 and 002. Width, number of words and number of steps are smaller, to save time.
struct Setting {
  Index depth = 6, dim = 64, heads = 4, experts = 16, k = 2, hidden = 64, length = 64;
  Index batch = 16, steps = 1600, warmup = 100, threshold = 10;
  double lr = 3e-3, clip = 1;
  std::string backend = "cpu";
  // The command line does not set these members. If a case changes one of them, the name of the case shows it.
  gatefold::Initial initial{};  // weights of the experts
  double dropout = 0;           // rate, in the models of paper 001
  double floor = 0.1;           // the last learning rate over the largest one; 1 makes it constant after the warm-up

  /// Calls f(option, value, description) for all options except the backend.
  template <class S, class F>
  static void each(S& s, F&& f) {
    f("--depth", s.depth, "number of layers, each with attention and a mixture of experts");
    f("--dim", s.dim, "width of the model");
    f("--heads", s.heads, "attention heads, a divisor of --dim");
    f("--experts", s.experts, "experts per mixture");
    f("--k", s.k, "experts per word");
    f("--hidden", s.hidden, "hidden width of an expert; in the papers, it equals the width of the model");
    f("--length", s.length, "words of a sequence");
    f("--batch", s.batch, "sequences per step");
    f("--steps", s.steps, "training steps");
    f("--warmup", s.warmup, "warm-up steps, in which the learning rate rises; then it falls to a tenth as a cosine");
    f("--threshold", s.threshold, "words that occur less often are replaced by the unknown word");
    f("--lr", s.lr, "learning rate of Adam, without weight decay");
    f("--clip", s.clip, "largest norm of a gradient");
  }

  Json json() const {
    Json j = Json::object();
    each(*this, [&](const std::string& option, const auto& value, const char*) { j[option.substr(2)] = value; });
    note_backend(j, backend);
    return j;
  }
  /// @throws ArgumentError unless `heads` divides `dim`, k <= experts, and warmup < steps
  void validate() const {
    using gatefold::expect;
    using gatefold::Joined;
    expect(dim % heads == 0, "options", "--heads", Joined{"a divisor of dim = ", dim}, heads);
    expect(k <= experts, "options", "--k", Joined{"at most experts = ", experts}, k);
    expect(warmup < steps, "options", "--warmup", Joined{"less than steps = ", steps}, warmup);
  }
};

/// Adds all options except the backend.
inline void add_sizes(CLI::App& app, Setting& setting) {
  Setting::each(setting, [&](const char* option, auto& value, const char* what) {
    auto* added = app.add_option(option, value, what)->capture_default_str();
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, Index>) {
      added->check(CLI::Range(Index(1), Index(1) << 20));
    } else {
      added->check(above_zero());
    }
  });
}
inline void add_setting(CLI::App& app, Setting& setting) {
  add_sizes(app, setting);
  add_backend(app, setting.backend);
}

/// Makes the small model of --quick. Its results have no meaning.
inline void make_quick(const CLI::App& app, Setting& s) {
  unless_given(app, "--depth", s.depth, 2);
  unless_given(app, "--dim", s.dim, 16);
  unless_given(app, "--hidden", s.hidden, 16);
  unless_given(app, "--experts", s.experts, 4);
  unless_given(app, "--length", s.length, 16);
  unless_given(app, "--batch", s.batch, 4);
  unless_given(app, "--steps", s.steps, 40);
  unless_given(app, "--warmup", s.warmup, 5);
  unless_given(app, "--threshold", s.threshold, 50);
}

}  // namespace studies::lm
