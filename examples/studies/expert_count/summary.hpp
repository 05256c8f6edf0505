#pragma once

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/numbers.hpp"
#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "jobs.hpp"

namespace studies::expert_count {

/// Collects the numbers, curves and pictures of the studies.
struct StudySummary {
  std::vector<Result> results{};
  Json curves = Json::object();

  void add(const std::string& name, std::vector<double> values) { results.push_back({name, std::move(values)}); }
  /// Adds a picture, which is drawn when the results are written.
  void draw(const std::string& svg, std::vector<Panel> panels, int across) {
    pictures_.push_back([svg, panels = std::move(panels), across](const std::filesystem::path& out) {
      studies::draw(out / svg, panels, across);
    });
  }
  void draw_all(const std::filesystem::path& out) const {
    for (const auto& picture : pictures_) picture(out);
  }

 private:
  std::vector<std::function<void(const std::filesystem::path&)>> pictures_{};
};

/// Returns the result named `key` of each run.
inline std::vector<double> values(std::span<const Json> runs, const std::string& key) {
  return numbers(runs, [&](const Json& run) { return number(run.at(key)); });
}
inline std::vector<double> as_doubles(const std::vector<Index>& list) { return {list.begin(), list.end()}; }

/// Returns a curve whose point at x[i] is the mean ± std of the result named `key` over the runs of labels[i].
inline Curve curve(const Jobs& jobs, std::string title, const std::vector<double>& x,
                   const std::vector<std::string>& labels, const std::string& key) {
  Curve c{std::move(title), {}, {}};
  for (std::size_t i = 0; i < labels.size(); ++i) c.add(x[i], values(jobs.of(labels[i]), key));
  return c;
}

/// Returns the curve named `key` over the iterations of training, mean ± std over the runs.
inline Curve course(std::span<const Json> runs, std::string title, const std::string& key) {
  Curve c{std::move(title), {}, {}};
  const Json& iterations = runs.front().at("curve").at("iteration");
  for (std::size_t i = 0; i < iterations.size(); ++i)
    c.add(number(iterations.at(i)),
          numbers(runs, [&](const Json& run) { return number(run.at("curve").at(key).at(i)); }));
  return c;
}
inline Lines accuracy_panel(const std::string& title, const std::string& x_label) {
  return {.title = title, .x_label = x_label, .y_label = "test accuracy, %", .least = 0, .most = 100};
}
inline Lines entropy_panel(const std::string& title, const std::string& x_label) {
  return {.title = title, .x_label = x_label, .y_label = "dispatch entropy", .least = 0, .most = std::log(kClusters)};
}
/// Returns the curve as JSON. If it has no deviations, because there is only one seed, "std" is null.
inline Json json(const Curve& c) {
  return {{"x", c.x}, {"mean", c.y}, {"std", c.error.empty() ? Json() : Json(c.error)}};
}

}  // namespace studies::expert_count
