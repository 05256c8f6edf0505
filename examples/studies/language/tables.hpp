#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/numbers.hpp"
#include "../support/pictures.hpp"
#include "study.hpp"
#include "text.hpp"

namespace studies::lm {

/// The results of the finished cases: name of the case → one result per seed.
using Done = std::map<std::string, std::vector<Json>>;

inline std::vector<double> values(const std::vector<Json>& runs, const char* key) {
  return numbers(runs, [&](const Json& run) { return number(run[key]); });
}
inline std::string shown(double value, int decimals, bool sign = false) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.*f", decimals, std::abs(value));
  const bool zero = std::string(digits).find_first_of("123456789") == std::string::npos;
  return (zero ? "" : value < 0 ? "−" : sign ? "+" : "") + std::string(digits);
}
/// Formats mean ± standard deviation over seeds.
inline std::string shown(const std::vector<double>& of_seeds, int decimals, bool sign = false) {
  const auto std = deviation(of_seeds);
  return shown(mean(of_seeds), decimals, sign) + (std ? " ± " + shown(*std, decimals) : "");
}

/// Returns a table for the study's page: test perplexities, their differences from the baseline with the same seed, the
/// relative change, and the change in the paper. Leaves out cases that are not done.
inline std::string perplexity_table(const Group& group, const std::vector<Case>& cases, const Done& done) {
  if (std::none_of(group.cases.begin(), group.cases.end(),
                   [&](const std::string& name) { return done.contains(name); }))
    return {};
  std::string text = "**" + group.title +
                     "**\n\n| model | clean | Δ | attacked | Δ | harm, % | Δ | clean, ours / paper's | "
                     "attacked, ours / paper's |\n|---|---|---|---|---|---|---|---|---|\n";
  const auto find = [&](const std::string& name) {
    return std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
  };
  for (const std::string& name : group.cases) {
    const auto found = find(name);
    if (found == cases.end() || !done.contains(name)) continue;
    const std::vector<Json>& runs = done.at(name);
    const bool compared = found->baseline != name && done.contains(found->baseline);
    text += "| " + found->label;
    const auto change = [&](const char* key, double Printed::*printed) {
      if (!compared) return std::string();
      const auto percent = [](double ours, double theirs) { return shown(100 * (ours / theirs - 1), 1, true) + " %"; };
      const auto& baseline = find(found->baseline)->printed;
      const std::string ours = percent(mean(values(runs, key)), mean(values(done.at(found->baseline), key)));
      if (!found->printed || !baseline || (*found->printed).*printed == 0) return ours + " /";
      return ours + " / " + percent((*found->printed).*printed, (*baseline).*printed);
    };
    const auto columns = [&](const char* key, double scale, double zero) {
      std::vector<double> all = values(runs, key), difference = all;
      for (double& one : all) one = scale * (one - zero);
      text += " | " + shown(all, 2) + " | ";
      if (!compared) return;
      const std::vector<double> from = values(done.at(found->baseline), key);
      for (std::size_t i = 0; i < from.size(); ++i) difference[i] = scale * (difference[i] - from[i]);
      text += shown(difference, 2, true);
    };
    columns("test", 1, 0);
    columns("test_attacked", 1, 0);
    columns("test_harm", 100, 1);
    text += " | " + change("test", &Printed::clean) + " | " + change("test_attacked", &Printed::attacked) + " |\n";
  }
  return text + '\n';
}

/// Returns one number for every layer of a run, or no value if the run does not have it.
inline std::optional<std::vector<double>> of_layers(const Json& run, const std::string& pointer) {
  std::vector<double> all;
  for (const Json& layer : run["layers"]) {
    const Json::json_pointer at(pointer);
    if (!layer.contains(at) || layer[at].is_null()) return {};
    all.push_back(layer[at].get<double>());
  }
  return all;
}

/// Calls f(case, its results) for each finished case that is in comparison.seen.
template <class F>
void for_each_seen(const Comparison& comparison, const Done& done, const F& f) {
  for (const Case& c : comparison.cases)
    if (std::find(comparison.seen.begin(), comparison.seen.end(), c.name) != comparison.seen.end() &&
        done.contains(c.name))
      f(c, done.at(c.name));
}

/// Returns a table of one measurement of every layer, with one row for each case.
inline std::string layer_table(const LayerNumber& what, const Comparison& comparison, const Done& done) {
  std::string rows;
  std::size_t depth = 0;
  for_each_seen(comparison, done, [&](const Case& c, const std::vector<Json>& runs) {
    std::vector<std::vector<double>> of_seeds;
    for (const Json& run : runs)
      if (const auto layers = of_layers(run, what.pointer)) of_seeds.push_back(*layers);
    if (of_seeds.size() < runs.size()) return;
    depth = std::max(depth, of_seeds[0].size());
    rows += "| " + c.label;
    for (std::size_t l = 0; l < of_seeds[0].size(); ++l) {
      std::vector<double> of_layer;
      for (const auto& seed : of_seeds) of_layer.push_back(what.scale * seed[l]);
      rows += " | " + shown(of_layer, what.decimals);
    }
    rows += " |\n";
  });
  if (rows.empty()) return {};
  std::string head = "**" + what.title + "**\n\n| layer", line = "|---";
  for (std::size_t l = 1; l <= depth; ++l) {
    head += " | " + std::to_string(l);
    line += "|---";
  }
  return head + " |\n" + line + "|\n" + rows + '\n';
}

/// Returns a table of perplexities: in one column, attention can read the words after a word; in the other, these words
/// are removed.
inline std::string prefix_table(const Comparison& comparison, const Done& done) {
  std::string rows;
  for_each_seen(comparison, done, [&](const Case& c, const std::vector<Json>& runs) {
    if (!runs[0].contains("prefixes")) return;
    rows +=
        "| " + c.label + " | " + shown(values(runs, "whole"), 2) + " | " + shown(values(runs, "prefixes"), 2) + " |\n";
  });
  if (rows.empty()) return {};
  return "**A block of the validation text, whole and word by word with what follows cut off**\n\n"
         "| model | whole | cut off |\n|---|---|---|\n" +
         rows + '\n';
}

inline std::string all_tables(const Comparison& comparison, const Done& done, Index seeds, const Text& text) {
  std::string tables = std::to_string(done.size()) + " of " + std::to_string(comparison.cases.size()) + " cases, " +
                       std::to_string(seeds) + " seeds each; " + std::to_string(text.train.size()) +
                       " words to learn from, " + std::to_string(text.vocabulary.size()) + " different ones.\n\n";
  for (const Group& group : comparison.groups) tables += perplexity_table(group, comparison.cases, done);
  tables += prefix_table(comparison, done);
  for (const LayerNumber& what : comparison.of_layers) tables += layer_table(what, comparison, done);
  return tables;
}

/// Draws the validation perplexity over the training steps. Also draws, for each layer, the measurements after training
/// that the comparison selects (LayerNumber::drawn).
inline void draw_all(const std::filesystem::path& svg, const Comparison& comparison, const Done& done) {
  std::vector<Panel> panels;
  const auto panel = [&](Lines lines, const auto& points) {
    for_each_seen(comparison, done, [&](const Case& c, const std::vector<Json>& runs) {
      Curve curve{.title = c.label, .x = {}, .y = {}};
      points(runs, curve);
      if (!curve.x.empty()) lines.curves.push_back(std::move(curve));
    });
    panels.emplace_back(std::move(lines));
  };
  panel({.title = "Validation", .x_label = "step", .y_label = "perplexity", .log_y = true},
        [](const std::vector<Json>& runs, Curve& curve) {
          const Json& steps = runs[0]["curve"]["step"];
          for (std::size_t i = 0; i < steps.size(); ++i)
            curve.add(steps[i].get<double>(),
                      numbers(runs, [&](const Json& run) { return number(run["curve"]["valid"][i]); }));
        });
  for (const LayerNumber& what : comparison.of_layers) {
    if (!what.drawn) continue;
    panel({.title = what.title, .x_label = "layer", .y_label = "", .least = 0}, [&](const std::vector<Json>& runs,
                                                                                    Curve& curve) {
      const auto layers = of_layers(runs[0], what.pointer);
      for (std::size_t l = 0; layers && l < layers->size(); ++l)
        curve.add(static_cast<double>(l + 1),
                  numbers(runs, [&](const Json& run) { return what.scale * of_layers(run, what.pointer)->at(l); }));
    });
  }
  draw(svg, panels, static_cast<int>(panels.size()));
}

}  // namespace studies::lm
