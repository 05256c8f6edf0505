#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../support/study.hpp"
#include "learn.hpp"

namespace studies::lm {

/// The runs of all cases, one per seed, case by case in the order of the list: the most important come first, so that a
/// table of the first hour is one of whole rows.
inline std::vector<Run> runs_of(const std::vector<Case>& cases, const Common& common, const Text& text) {
  std::vector<Run> runs;
  for (const Case& c : cases)
    add_seeds(runs, c.name, common.seed, common.seeds, [&](std::uint64_t seed) {
      Json depends{{"case", c.name}, {"setting", c.setting.json()}, {"text", text.json()}};
      return Run{{}, depends, [&c, &text, seed](const Report& report) { return learn(c, text, Seed{seed}, report); }};
    });
  return runs;
}

/// Results of the cases that are done, by name: one per seed.
using Done = std::map<std::string, std::vector<Json>>;

/// @param found  results in the order of runs_of; nothing where a run is not done
inline Done whole_cases(const std::vector<Case>& cases, Index seeds, const std::vector<std::optional<Json>>& found) {
  Done done;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<Json> results;
    for (Index s = 0; s < seeds; ++s)
      if (const auto& one = found[i * static_cast<std::size_t>(seeds) + static_cast<std::size_t>(s)])
        results.push_back(*one);
    if (static_cast<Index>(results.size()) == seeds) done[cases[i].name] = std::move(results);
  }
  return done;
}

inline std::vector<double> values(const std::vector<Json>& runs, const char* key) {
  return numbers(runs, [&](const Json& run) { return number(run[key]); });
}
/// A number as it stands in a table.
inline std::string shown(double value, int decimals, bool sign = false) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.*f", decimals, std::abs(value));
  const bool zero = std::string(digits).find_first_of("123456789") == std::string::npos;
  return (zero ? "" : value < 0 ? "−" : sign ? "+" : "") + std::string(digits);
}
/// Mean ± standard deviation over seeds.
inline std::string shown(const std::vector<double>& of_seeds, int decimals, bool sign = false) {
  const auto std = deviation(of_seeds);
  return shown(mean(of_seeds), decimals, sign) + (std ? " ± " + shown(*std, decimals) : "");
}

/// A table of the page: test perplexities, their differences from the baseline by seed, and by how much they change,
/// the paper's change beside it. Cases that are not done are missing.
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

/// A number of every layer, one row for each case.
inline std::string layer_table(const std::string& title, const std::vector<std::string>& names,
                               const std::vector<Case>& cases, const Done& done, int decimals,
                               const std::function<std::optional<double>(const Json& layer)>& value) {
  std::string rows;
  std::size_t depth = 0;
  for (const Case& c : cases) {
    if (std::find(names.begin(), names.end(), c.name) == names.end() || !done.contains(c.name)) continue;
    const std::vector<Json>& runs = done.at(c.name);
    std::string row = "| " + c.label;
    bool there = true;
    const std::size_t layers = runs[0]["layers"].size();
    for (std::size_t l = 0; l < layers; ++l) {
      std::vector<double> of_seeds;
      for (const Json& run : runs) {
        const auto one = value(run["layers"][l]);
        there = there && one;
        of_seeds.push_back(one.value_or(0));
      }
      row += " | " + shown(of_seeds, decimals);
    }
    if (!there) continue;
    depth = std::max(depth, layers);
    rows += row + " |\n";
  }
  if (rows.empty()) return {};
  std::string head = "**" + title + "**\n\n| layer", line = "|---";
  for (std::size_t l = 1; l <= depth; ++l) {
    head += " | " + std::to_string(l);
    line += "|---";
  }
  return head + " |\n" + line + "|\n" + rows + '\n';
}
inline std::optional<double> of_key(const Json& layer, const char* key) {
  if (!layer.contains(key) || layer[key].is_null()) return {};
  return layer[key].get<double>();
}

/// Validation perplexity during training.
inline Lines curves(const std::string& title, const std::vector<std::string>& names, const std::vector<Case>& cases,
                    const Done& done) {
  Lines panel{.title = title, .x_label = "step", .y_label = "validation perplexity", .log_y = true};
  for (const Case& c : cases) {
    if (std::find(names.begin(), names.end(), c.name) == names.end() || !done.contains(c.name)) continue;
    const std::vector<Json>& runs = done.at(c.name);
    Curve curve{.title = c.label, .x = {}, .y = {}};
    const auto& steps = runs[0]["curve"]["step"];
    for (std::size_t i = 0; i < steps.size(); ++i)
      curve.add(steps[i].get<double>(),
                numbers(runs, [&](const Json& run) { return number(run["curve"]["valid"][i]); }));
    panel.curves.push_back(std::move(curve));
  }
  return panel;
}
/// A number of every layer, averaged over seeds.
inline Lines layer_lines(const std::string& title, const std::string& y, const std::vector<std::string>& names,
                         const std::vector<Case>& cases, const Done& done, const char* key) {
  Lines panel{.title = title, .x_label = "layer", .y_label = y};
  for (const Case& c : cases) {
    if (std::find(names.begin(), names.end(), c.name) == names.end() || !done.contains(c.name)) continue;
    const std::vector<Json>& runs = done.at(c.name);
    Curve curve{.title = c.label, .x = {}, .y = {}};
    for (std::size_t l = 0; l < runs[0]["layers"].size(); ++l)
      curve.add(static_cast<double>(l + 1),
                numbers(runs, [&](const Json& run) { return number(run["layers"][l][key]); }));
    panel.curves.push_back(std::move(curve));
  }
  return panel;
}

}  // namespace studies::lm
