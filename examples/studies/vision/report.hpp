#pragma once

#include <gatefold/papers/corruption.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "../support/study.hpp"
#include "learn.hpp"

namespace studies::vision {

/// The results of the cases: name of the case → one result per seed.
using Done = std::map<std::string, std::vector<Json>>;

/// Returns the errors of a run under each corruption, in the order that metric::corruption_error expects.
inline std::vector<double> errors(const Json& run) {
  std::vector<double> all;
  for (const auto& kind : run["corrupted"])
    for (const auto& accuracy : kind) all.push_back(1 - accuracy.get<double>());
  return all;
}

/// A column of the table: its title, and the function that computes its numbers from the runs of a case and of the
/// baseline, one per seed. The numbers are shares in %, or the mean corruption error.
struct Measure {
  std::string name, label;
  std::vector<double> (*of)(const std::vector<Json>& runs, const std::vector<Json>& linear);
};
inline const std::vector<Measure>& measures() {
  using Runs = std::vector<Json>;
  static const std::vector<Measure> all{
      {"clean", "clean",
       [](const Runs& runs, const Runs&) {
         return numbers(runs, [](const Json& r) { return 100 * number(r["clean"]); });
       }},
      {"corrupted", "corrupted",
       [](const Runs& runs, const Runs&) {
         return numbers(runs, [](const Json& r) { return 100 * (1 - mean(errors(r))); });
       }},
      {"mce", "mCE",
       [](const Runs& runs, const Runs& linear) {
         std::vector<double> found;
         for (std::size_t i = 0; i < runs.size(); ++i)
           found.push_back(
               100 * gatefold::metric::corruption_error(errors(runs[i]), errors(linear[i]), images::kSeverities).mean);
         return found;
       }},
      {"fgsm", "FGSM",
       [](const Runs& runs, const Runs&) {
         return numbers(runs, [](const Json& r) { return 100 * number(r["fgsm"]); });
       }},
      {"pgd", "PGD", [](const Runs& runs, const Runs&) {
         return numbers(runs, [](const Json& r) { return 100 * number(r["pgd"]); });
       }}};
  return all;
}

/// Returns the differences between values and the values of the baseline with the same seed.
inline std::vector<double> paired(std::vector<double> values, const std::vector<double>& baseline) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= baseline[i];
  return values;
}
/// Formats mean ± deviation.
inline std::string shown(const std::vector<double>& of_seeds, bool sign) {
  char text[80];
  std::snprintf(text, sizeof text, sign ? "%+.2f" : "%.2f", mean(of_seeds));
  std::string cell = text;
  if (const auto std = deviation(of_seeds)) {
    std::snprintf(text, sizeof text, " ± %.2f", *std);
    cell += text;
  }
  return cell;
}

/// Returns the table for the study's page: for each case, each measure and its difference from the baseline with the
/// same seed.
inline std::string table(const Done& done) {
  std::string text = "| model |", rule = "|---|";
  for (const Measure& m : measures()) {
    text += ' ' + m.label + " | Δ |";
    rule += "---|---|";
  }
  text += " parameters |\n" + rule + "---|\n";
  for (const Case& c : cases()) {
    const auto& runs = done.at(c.name);
    text += "| " + c.label + " |";
    for (const Measure& m : measures()) {
      const auto values = m.of(runs, done.at(baseline_of_errors()));
      text += ' ' + shown(values, false) + " |";
      text += c.baseline == c.name
                  ? " |"
                  : ' ' + shown(paired(values, m.of(done.at(c.baseline), done.at(baseline_of_errors()))), true) + " |";
    }
    text += ' ' + std::to_string(runs[0]["parameters"].get<Index>()) + " |\n";
  }
  return text;
}

inline void report(const Common& common, const Json& options, const Done& done) {
  std::vector<Result> results;
  Json curves = Json::object();
  Lines severities{
      .title = "Fashion-MNIST, mean of six corruptions", .x_label = "severity (0: clean)", .y_label = "accuracy in %"};
  for (const Case& c : cases()) {
    const auto& runs = done.at(c.name);
    for (const Measure& m : measures()) {
      const auto values = m.of(runs, done.at(baseline_of_errors()));
      results.push_back({c.name + '.' + m.name, values});
      if (c.baseline != c.name)
        results.push_back({c.name + '.' + m.name + "_minus_" + c.baseline,
                           paired(values, m.of(done.at(c.baseline), done.at(baseline_of_errors())))});
    }
    Curve curve{c.label, {}, {}};
    for (Index s = 0; s <= images::kSeverities; ++s)
      curve.add(static_cast<double>(s), numbers(runs, [&](const Json& run) {
                  if (s == 0) return 100 * number(run["clean"]);
                  double sum = 0;
                  for (const auto& kind : run["corrupted"]) sum += number(kind[static_cast<std::size_t>(s - 1)]);
                  return 100 * sum / static_cast<double>(images::kKinds);
                }));
    severities.curves.push_back(std::move(curve));
    curves[c.name] = Json::array();
    for (const Json& run : runs)
      curves[c.name].push_back({{"corrupted", run["corrupted"]}, {"training", run["curve"]}});
  }
  write_results(common, "vision", options, results, curves);
  const std::string text = table(done);
  write_file(common.out / "table.md", text);
  draw(common.out / "vision.svg", {severities}, 1);
  std::printf("%s", text.c_str());
  finish(common, options, results, text);
}

}  // namespace studies::vision
