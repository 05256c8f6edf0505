#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "jobs.hpp"

namespace studies::expert_count {

/// What the studies found.
struct Summary {
  std::vector<Result> results{};
  Json curves = Json::object();

  void add(const std::string& name, std::vector<double> values) { results.push_back({name, std::move(values)}); }
};

/// A number of a run's result; NaN, which JSON does not hold, stands there as null.
inline double number(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}
/// One number of every seed.
inline std::vector<double> values(std::span<const Json> runs, const std::string& key) {
  std::vector<double> all;
  for (const Json& run : runs) all.push_back(number(run.at(key)));
  return all;
}
inline std::vector<double> as_doubles(const std::vector<Index>& list) { return {list.begin(), list.end()}; }

/// A curve over x of what the labels' runs say, mean ± std.
inline Curve curve(const Jobs& jobs, std::string title, std::vector<double> x, const std::vector<std::string>& labels,
                   const std::string& key) {
  Curve c{std::move(title), std::move(x), {}, {}};
  for (const std::string& label : labels) {
    const std::vector<double> all = values(jobs.of(label), key);
    c.y.push_back(mean(all));
    c.error.push_back(deviation(all).value_or(0));
  }
  return c;
}

/// A curve of a run's course, mean ± std over its seeds; x is "iteration".
inline Curve course(std::span<const Json> runs, std::string title, const std::string& key) {
  Curve c{std::move(title), {}, {}, {}};
  const Json& first = runs.front().at("curve");
  for (std::size_t i = 0; i < first.at("iteration").size(); ++i) {
    std::vector<double> all;
    for (const Json& run : runs) all.push_back(number(run.at("curve").at(key).at(i)));
    c.x.push_back(number(first.at("iteration").at(i)));
    c.y.push_back(mean(all));
    c.error.push_back(deviation(all).value_or(0));
  }
  return c;
}
inline Json json(const Curve& c) { return {{"x", c.x}, {"mean", c.y}, {"std", c.error}}; }

}  // namespace studies::expert_count
