#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "summary.hpp"

/// Tests Theorem 1 and Lemmas 2 and 3 of paper 003. Measures the error of each expert on each cluster.
namespace studies::expert_count::theorem {

using Errors = std::vector<std::vector<double>>;  // [M][K]

/// Returns the cluster with the lowest error. Ignores clusters without items, whose errors are NaN.
inline std::size_t lowest(const std::vector<double>& of_clusters) {
  const auto less = [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
  return static_cast<std::size_t>(std::min_element(of_clusters.begin(), of_clusters.end(), less) - of_clusters.begin());
}

/// Statistics of the experts' errors on the clusters after one stage of training.
struct Stage {
  /// Mean errors over the experts: on the expert's own cluster, on the other clusters, and on the cluster with the
  /// expert's lowest error.
  double own = 0, other = 0, best = 0;
  double covered = 0;  // number of clusters on which at least one expert has its lowest error
};
/// Computes the statistics of one stage.
/// @param errors  [M][K]
/// @param own     [M] the cluster of each expert
inline Stage stage(const Errors& errors, const std::vector<std::size_t>& own) {
  Stage s;
  const double experts = static_cast<double>(errors.size());
  std::vector<bool> seen(kClusters);
  for (std::size_t m = 0; m < errors.size(); ++m) {
    const double all = std::accumulate(errors[m].begin(), errors[m].end(), 0.0), mine = errors[m][own[m]];
    s.own += mine / experts;
    s.other += (all - mine) / (kClusters - 1) / experts;
    const std::size_t k = lowest(errors[m]);
    s.best += errors[m][k] / experts;
    seen[k] = true;
  }
  s.covered = static_cast<double>(std::count(seen.begin(), seen.end(), true));
  return s;
}
/// Returns the share of the test items that go to an expert of their own cluster, as the mean over the clusters.
inline double routed(const Json& run, const std::vector<std::size_t>& own) {
  const auto shares = matrix(run.at("routing"));  // [K][M]
  double sum = 0, clusters = 0;
  for (std::size_t k = 0; k < shares.size(); ++k) {
    if (std::isnan(shares[k].front())) continue;  // no items
    ++clusters;
    for (std::size_t m = 0; m < own.size(); ++m) sum += own[m] == k ? shares[k][m] : 0;
  }
  return sum / clusters;
}

/// Adds the statistics (Stage) of the runs with a label. Their names are <name>.t1.… and <name>.end.…
inline void report_stages(const Jobs& jobs, const std::string& label, const std::string& name, StudySummary& summary) {
  for (const std::string at : {"t1", "end"}) {
    std::vector<double> own, other, best, covered;
    for (const Json& run : jobs.of(label)) {
      const Json& experts = run.at("experts");
      if (!experts.contains(at)) continue;
      const Stage s = stage(matrix(experts.at(at).at("errors")),
                            experts.at("start").at("specialised").get<std::vector<std::size_t>>());
      own.push_back(s.own);
      other.push_back(s.other);
      best.push_back(s.best);
      covered.push_back(s.covered);
    }
    if (own.empty()) continue;
    summary.add(name + "." + at + ".own_error", own);
    summary.add(name + "." + at + ".other_error", other);
    summary.add(name + "." + at + ".best_error", best);
    summary.add(name + "." + at + ".covered", covered);
  }
}

/// These functions return the least and the largest number of experts that Theorem 1 admits, if all its constants are
/// 1: K ln K ln ln d and σ₀^−0.075.
inline double least_experts() { return kClusters * std::log(kClusters) * std::log(std::log(kDim)); }
inline double most_experts(double sigma0) { return std::pow(sigma0, -0.075); }

/// The options of a layer, and the label of its runs.
struct Case {
  std::string label;
  Setting setting;
};
/// Returns one layer for each kind of expert in the options. For the kind "mlp", also returns a layer with the smallest
/// σ₀ that Theorem 1 admits, inputs of scale 1, and 1/η iterations. The exploration stage of this layer ends before the
/// last iteration, at T₁ = √σ₀/η.
inline std::vector<Case> cases(const Options& o, Index experts) {
  std::vector<Case> all;
  for (const auto& kind : o.kinds()) {
    const Setting s = o.setting(kind, o.patches.front(), experts);
    all.push_back({s.label(), s});
    if (kind != "mlp") continue;
    Setting own = s;
    own.sigma0 = std::cbrt(1.0 / kDim);
    own.scale = 1;
    const double iterations = std::round(1 / s.eta);
    gatefold::expect(iterations >= 1 && iterations <= 1 << 24, "options", "--eta",
                     "6e-8 to 2 of the study theorem, which has 1 / eta iterations", s.eta);
    own.iterations = static_cast<Index>(iterations);
    all.push_back({s.label() + ".theorem", own});
  }
  return all;
}

inline void add(const Options& o, Jobs& jobs) {
  for (const Index m : o.experts)
    for (const Case& c : cases(o, m)) jobs.add(c.label, c.setting);
}

/// Returns a picture of the experts' errors in one run. The experts are sorted by the cluster of their lowest error in
/// `order_of`, the errors at the end of the run.
inline HeatMap picture(const std::string& title, const Errors& errors, const Errors& order_of) {
  std::vector<std::size_t> order(errors.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lowest(order_of[a]) < lowest(order_of[b]); });
  HeatMap map{.title = title,
              .x_label = "expert m, by its best cluster",
              .y_label = "cluster k",
              .columns = {},
              .rows = {},
              .values = {},
              .numbers = errors.size() <= 16};
  for (const std::size_t m : order) map.columns.push_back(std::to_string(m));
  for (std::size_t k = 0; k < kClusters; ++k) {
    map.rows.push_back(std::to_string(k));
    map.values.emplace_back();
    for (const std::size_t m : order) map.values.back().push_back(errors[m][k]);
  }
  return map;
}

/// Adds the number of sets M_k (the experts of cluster k, definition 2) that are not empty, and the share of experts
/// that keep their cluster. Also adds two shares of items that go to an expert of their cluster. For the first share,
/// the cluster of an expert is that of its set M_k. For the second, it is the cluster with the expert's lowest error.
inline void report_sets(const Jobs& jobs, const Case& c, const std::string& name, StudySummary& summary) {
  std::vector<double> to_own, to_best, kept, non_empty;
  for (const Json& run : jobs.of(c.label)) {
    const Json& experts = run.at("experts");
    const auto own = experts.at("start").at("specialised").get<std::vector<std::size_t>>();
    const auto later = experts.at("end").at("specialised").get<std::vector<std::size_t>>();
    std::vector<std::size_t> best;
    for (const auto& of_clusters : matrix(experts.at("end").at("errors"))) best.push_back(lowest(of_clusters));
    to_own.push_back(routed(run, own));
    to_best.push_back(routed(run, best));
    double same = 0;
    std::vector<bool> seen(kClusters);
    for (std::size_t m = 0; m < own.size(); ++m) {
      same += own[m] == later[m] ? 1 : 0;
      seen[own[m]] = true;
    }
    kept.push_back(same / static_cast<double>(own.size()));
    non_empty.push_back(static_cast<double>(std::count(seen.begin(), seen.end(), true)));
  }
  summary.add(name + ".non_empty_sets", non_empty);
  summary.add(name + ".kept", kept);  // share of experts whose cluster did not change
  summary.add(name + ".routed_to_own", to_own);
  summary.add(name + ".routed_to_best", to_best);
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  std::map<std::string, std::vector<Panel>> pictures;
  for (const Index m : o.experts)
    for (const Case& c : cases(o, m)) {
      const Setting& s = c.setting;
      report_stages(jobs, c.label, "theorem1." + c.label, summary);
      report_sets(jobs, c, "theorem1." + c.label, summary);
      const Json& first = jobs.of(c.label).front().at("experts");
      const auto end = matrix(first.at("end").at("errors"));
      Json facts{{"T", s.iterations},
                 {"T1", s.t1()},
                 {"T2", s.t2()},
                 {"M_least", least_experts()},
                 {"M_most", most_experts(s.sigma0)},
                 {"T1_reached", first.contains("t1")},
                 {"router_iterations", std::max<Index>(0, s.t2() - s.t1())},
                 {"errors_end", end}};
      auto& panels = pictures[s.expert + (c.label == s.label() ? "" : "_theorem")];
      const std::string title = "P(y f_m ≤ 0), M = " + std::to_string(m) + ", t = ";
      if (first.contains("t1")) {
        const auto errors = matrix(first.at("t1").at("errors"));
        facts["errors_T1"] = errors;
        panels.push_back(picture(title + std::to_string(s.t1()) + " = T1", errors, end));
      }
      panels.push_back(picture(title + std::to_string(s.iterations), end, end));
      summary.curves["theorem1"][c.label] = std::move(facts);
      std::printf("%s: T1 = %lld%s, T2 = %lld%s, T = %lld; constants aside, Theorem 1 asks for %.1f <= M <= %.1f\n",
                  c.label.c_str(), static_cast<long long>(s.t1()), first.contains("t1") ? "" : " (not reached)",
                  static_cast<long long>(s.t2()),
                  s.t2() > s.t1() ? "" : " (the router's stage has no iteration: Theorem 1 is silent)",
                  static_cast<long long>(s.iterations), least_experts(), most_experts(s.sigma0));
    }
  for (const auto& [name, panels] : pictures) summary.draw("errors_" + name + ".svg", panels, 2);
}

}  // namespace studies::expert_count::theorem
