#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "whole_training.hpp"

/// Numbers and pictures out of the runs of mot_vision and mot_text.
namespace studies {

/// One model on one set of data: what came out, a run per seed.
struct Trained {
  std::string data;
  Model model;
  std::vector<Json> runs{};

  std::string name() const { return data + '.' + model.name(); }
};

/// The score after an epoch, one value per seed.
inline std::vector<double> scores_after(const Trained& t, Index epoch) {
  std::vector<double> values;
  for (const Json& run : t.runs) values.push_back(run["score"][static_cast<std::size_t>(epoch - 1)].get<double>());
  return values;
}

/// How many experts share the test items evenly enough to be told apart from one: the exponential of the entropy of the shares.
inline double experts_in_use(const Json& shares) {
  double entropy = 0;
  for (const double s : shares)
    if (s > 0) entropy -= s * std::log(s);
  return std::exp(entropy);
}

/// The score at the end and, in three stages, after T₁ and T₂; where items are routed, how.
inline std::vector<Result> results_of(const Trained& t, const Recipe& r, const std::string& score) {
  std::vector<Result> all{{t.name() + '.' + score, scores_after(t, r.epochs)}};
  if (!t.runs.front().contains("share")) return all;
  if (t.model.kind != Model::Kind::attention_absent) {
    if (r.first > 0) all.push_back({t.name() + '.' + score + "_t1", scores_after(t, r.first)});
    if (r.second > 0) all.push_back({t.name() + '.' + score + "_t2", scores_after(t, r.second)});
  }
  if (t.model.experts == 1) return all;
  std::vector<double> used, entropy;
  for (const Json& run : t.runs) {
    used.push_back(experts_in_use(run["share"].back()));
    entropy.push_back(run["routing"]["dispatch_entropy"].get<double>());
  }
  all.push_back({t.name() + ".experts_in_use", used});
  all.push_back({t.name() + ".dispatch_entropy", entropy});
  return all;
}

/// Scores against epochs, mean ± std over the seeds.
inline Curve score_curve(const Trained& t, Index epochs) {
  Curve curve{t.model.name(), {}, {}};
  for (Index epoch = 1; epoch <= epochs; ++epoch) {
    const std::vector<double> values = scores_after(t, epoch);
    curve.x.push_back(static_cast<double>(epoch));
    curve.y.push_back(mean(values));
    if (const auto std = deviation(values)) curve.error.push_back(*std);
  }
  return curve;
}

/// The shares of the test items that go to each expert, against epochs, in the first run.
inline Lines routing_history(const Trained& t, const Recipe& r) {
  Lines lines{t.name() + ": routing of the test items", "epoch", "share of the items", false, false, {},
              {static_cast<double>(r.first), static_cast<double>(r.second)}};
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

/// Which expert the test items of a class go to in the first run, after T₁, T₂ or at the end.
inline HeatMap routing_map(const Trained& t, const std::string& when, const std::vector<std::string>& classes) {
  HeatMap map{t.name() + ": routing, " + when, "class", "expert", classes, {}, {}};
  const Json& shares = t.runs.front()["routing"][when];
  for (Index e = 0; e < t.model.experts; ++e) {
    map.rows.push_back(std::to_string(e + 1));
    map.values.emplace_back();
    for (const Json& of_class : shares) map.values.back().push_back(of_class[static_cast<std::size_t>(e)].get<double>());
  }
  return map;
}

}  // namespace studies
