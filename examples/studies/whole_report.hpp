#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "whole_training.hpp"

/// Computes results and pictures from the runs of mot_vision and mot_text.
namespace studies {

/// The results of one model on one set of data, one run per seed.
struct Trained {
  std::string data;
  Model model;
  std::vector<Json> runs;

  std::string name() const { return data + '.' + model.name(); }
};

/// Returns the score after an epoch, one value per seed.
inline std::vector<double> scores_after(const Trained& t, Index epoch) {
  return numbers(t.runs,
                 [epoch](const Json& run) { return number(run["score"][static_cast<std::size_t>(epoch - 1)]); });
}

/// Returns the number of experts that would have the same entropy as these shares if each had an equal share.
inline double experts_in_use(const Json& shares) {
  double entropy = 0;
  for (const double s : shares)
    if (s > 0) entropy -= s * std::log(s);
  return std::exp(entropy);
}

/// Returns the score at the end. For a model that is trained in three stages, also returns the score after T₁ and T₂.
/// For a model with a gate, also returns statistics of the routing.
inline std::vector<Result> results_of(const Trained& t, const Recipe& r, const std::string& score) {
  std::vector<Result> all{{t.name() + '.' + score, scores_after(t, r.epochs)}};
  if (!t.runs.front().contains("share")) return all;
  if (t.model.kind != Model::Kind::attention_absent) {
    if (r.first > 0) all.push_back({t.name() + '.' + score + "_t1", scores_after(t, r.first)});
    if (r.second > 0) all.push_back({t.name() + '.' + score + "_t2", scores_after(t, r.second)});
  }
  if (t.model.experts == 1) return all;
  all.push_back({t.name() + ".experts_in_use",
                 numbers(t.runs, [](const Json& run) { return experts_in_use(run["share"].back()); })});
  all.push_back({t.name() + ".dispatch_entropy",
                 numbers(t.runs, [](const Json& run) { return number(run["routing"]["dispatch_entropy"]); })});
  return all;
}

/// Returns the curve of scores against epochs, mean ± std over the seeds.
inline Curve score_curve(const Trained& t, Index epochs) {
  Curve curve{t.model.name(), {}, {}};
  for (Index epoch = 1; epoch <= epochs; ++epoch) curve.add(static_cast<double>(epoch), scores_after(t, epoch));
  return curve;
}

/// Returns one curve per expert: the share of the test items that go to the expert, against epochs, in the first run.
inline Lines routing_history(const Trained& t, const Recipe& r) {
  Lines lines{t.name() + ": where test items go", "epoch", "share of the items"};
  lines.from_zero = true;
  lines.marks = {static_cast<double>(r.first), static_cast<double>(r.second)};
  for (Index e = 0; e < t.model.experts; ++e) {
    Curve curve{"expert " + std::to_string(e + 1), {}, {}};
    for (const Json& shares : t.runs.front()["share"]) {
      curve.x.push_back(static_cast<double>(curve.x.size() + 1));
      curve.y.push_back(shares[static_cast<std::size_t>(e)].get<double>());
    }
    lines.curves.push_back(curve);
  }
  return lines;
}

/// Returns a map of the share of each class's test items that goes to each expert, in the first run.
/// @param when  "t1", "t2" or "end": the time of the measurement, after T₁, T₂ or T epochs
inline HeatMap routing_map(const Trained& t, const std::string& when, const std::vector<std::string>& classes) {
  HeatMap map{t.name() + ": where classes go, " + when, "class", "expert", classes, {}, {}};
  const Json& shares = t.runs.front()["routing"][when];
  for (Index e = 0; e < t.model.experts; ++e) {
    map.rows.push_back(std::to_string(e + 1));
    map.values.emplace_back();
    for (const Json& of_class : shares)
      map.values.back().push_back(of_class[static_cast<std::size_t>(e)].get<double>());
  }
  return map;
}

/// A set of data that all models use: its names, its score and its classes.
struct Seen {
  std::string name, title;             // name in the results, title above the curves
  std::string score, axis;             // name of the score in the results, label of its axis
  std::vector<std::string> classes{};  // names of the classes in the routing maps
};

/// Writes results, curves, pictures and the page of all models on all data.
/// @param runs  one result for each set of data, model and seed; the seed changes fastest
/// @param more  additional results to write
inline void write_report(const Common& common, const std::string& program, const Json& options,
                         const std::vector<Seen>& data, const std::vector<Model>& models, const Recipe& r,
                         const std::vector<Json>& runs, const std::vector<Result>& more = {}) {
  std::vector<Result> results;
  std::vector<Panel> scores, routing;
  Json curves = Json::object();
  auto next = runs.begin();
  for (const Seen& seen : data) {
    Lines lines{seen.title, "epoch", seen.axis};
    lines.marks = {static_cast<double>(r.first), static_cast<double>(r.second)};
    for (const Model& model : models) {
      const Trained t{seen.name, model, {next, next + common.seeds}};
      next += common.seeds;
      curves[t.name()] = t.runs;
      for (const Result& result : results_of(t, r, seen.score)) results.push_back(result);
      lines.curves.push_back(score_curve(t, r.epochs));
      if (model.kind > Model::Kind::mot_per_patch || model.experts == 1) continue;
      routing.push_back(routing_history(t, r));
      routing.push_back(routing_map(t, "end", seen.classes));
    }
    scores.push_back(lines);
  }
  results.insert(results.end(), more.begin(), more.end());
  write_results(common, program, options, results, curves);
  draw(common.out / "scores.svg", scores, 2);
  draw(common.out / "routing.svg", routing, 2);
  print_results(results);
  finish(common, options, results);
}

}  // namespace studies
