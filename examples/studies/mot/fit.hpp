#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "../support/numbers.hpp"

namespace studies::mot {

/// A line y = a + slope · x, fitted by least squares.
struct Fit {
  double slope = 0, r2 = 0;  // r2: explained share of the variance; 0 if y is constant
};
inline Fit line(const std::vector<double>& x, const std::vector<double>& y) {
  const double mx = mean(x), my = mean(y);
  double xx = 0, xy = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    xy += (x[i] - mx) * (y[i] - my);
    yy += (y[i] - my) * (y[i] - my);
  }
  return {xx > 0 ? xy / xx : 0, xx > 0 && yy > 0 ? xy * xy / (xx * yy) : 0};
}

/// Two models of how a loss decreases with the number t of epochs after stage II. Both have two constants and are
/// fitted to the same points.
struct Shapes {
  Fit exponential;  // log(loss) = a + slope · t: the loss reaches ε after O(log 1/ε) epochs
  Fit power;        // log(loss) = a + slope · log(t): if slope is −1, the loss reaches ε after O(1/ε) epochs
};
inline Shapes shapes(const std::vector<double>& t, const std::vector<double>& loss) {
  std::vector<double> times, logs, log_times;
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t[i] <= 0 || !(loss[i] > 0)) continue;
    times.push_back(t[i]);
    log_times.push_back(std::log(t[i]));
    logs.push_back(std::log(loss[i]));
  }
  if (times.size() < 3) return {};
  return {line(times, logs), line(log_times, logs)};
}

}  // namespace studies::mot
