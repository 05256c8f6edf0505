#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../../support/gnuplot.hpp"

namespace studies::pictures {

/// From the smallest to the largest of some numbers, along an axis that is linear or logarithmic.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;

  /// Whether the axis has a place for the number.
  bool takes(double value) const { return std::isfinite(value) && (!log || value > 0); }
  void add(double value) {
    if (!takes(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }

  /// A little more on both sides, but not across zero; never of no length.
  void widen(double share) {
    if (empty()) low = high = 1;
    if (log) {
      const double factor = low == high ? 2 : std::pow(high / low, share);
      low /= factor;
      high *= factor;
    } else {
      const double more = low == high ? std::max(0.5 * std::abs(low), 0.5) : share * (high - low);
      low = low >= 0 ? std::max(low - more, 0.0) : low - more;
      high += more;
    }
  }

  /// Where a number lies, from 0 to 1.
  double share(double value) const {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
  /// The tics of the axis, in gnuplot's words. On a short logarithmic axis gnuplot itself would set one or none.
  std::string tics() const {
    if (!log || high / low >= 1000) return "autofreq";
    std::vector<double> places;
    for (const bool all_digits : {false, true}) {
      places.clear();
      for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
        for (int digit = 1; digit < 10; ++digit)
          if ((all_digits || digit == 1 || digit == 2 || digit == 5) && digit * power >= low && digit * power <= high)
            places.push_back(digit * power);
      if (places.size() >= 3) break;
    }
    if (places.size() < 3) {
      const double power = std::pow(10, std::floor(std::log10(high - low)));
      const double step = high - low < 2 * power ? power / 2 : high - low < 5 * power ? power : 2 * power;
      places.clear();
      for (double place = std::ceil(low / step); place * step <= high; ++place) places.push_back(place * step);
    }
    std::string text;
    for (const double place : places) text += (text.empty() ? "" : ", ") + gnuplot::number(place);
    return '(' + text + ')';
  }
  std::string text() const { return '[' + gnuplot::number(low) + ':' + gnuplot::number(high) + "]\n"; }
};

}  // namespace studies::pictures
