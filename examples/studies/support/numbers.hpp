#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run.hpp"

/// Functions that read numbers from the results of runs, and statistics over several seeds.
namespace studies {

/// Returns the number in a JSON value. Returns NaN for null, because JSON cannot store NaN.
inline double number(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}
inline std::vector<std::vector<double>> matrix(const Json& rows) {
  std::vector<std::vector<double>> all;
  for (const Json& row : rows) {
    all.emplace_back();
    for (const Json& value : row) all.back().push_back(number(value));
  }
  return all;
}
template <class F>
std::vector<double> numbers(std::span<const Json> runs, const F& f) {
  std::vector<double> all;
  for (const Json& run : runs) all.push_back(f(run));
  return all;
}

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Returns the sample standard deviation, which divides by n − 1. Returns no value if there is only one number.
inline std::optional<double> deviation(const std::vector<double>& values) {
  if (values.size() < 2) return {};
  const double center = mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - center) * (v - center);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

/// Formats a number for a name or a file name. Rounds it to the smallest number of digits, at least six, from which it
/// can be read back exactly. Omits trailing zeros and plus signs.
inline std::string digits(double value) {
  char text[32];
  for (int count = 6; count <= 17; ++count) {
    std::snprintf(text, sizeof text, "%.*g", count, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  std::string name = text;
  std::erase(name, '+');
  return name;
}

/// Rounds a measurement to four significant digits, to keep stored runs small.
inline double rounded(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.4g", value);
  return std::strtod(digits, nullptr);
}

}  // namespace studies
