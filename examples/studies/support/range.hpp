#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "../../support/gnuplot.hpp"

namespace studies::pictures {

/// The range of numbers that an axis shows. The axis is linear or logarithmic.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;

  /// Returns true if the axis can show the number: it is finite, and above 0 on a logarithmic axis.
  bool takes(double value) const { return std::isfinite(value) && (!log || value > 0); }
  void add(double value) {
    if (!takes(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }

  /// Extends the range at both ends by `share` of its length, so that its length is above 0. A lower end of at least 0
  /// does not become negative.
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

  /// Returns the place of a number on the axis, from 0 to 1.
  double share(double value) const {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
  /// Returns the tics of the axis as a gnuplot command. By default, gnuplot sets at most one tic on a short logarithmic
  /// axis, and mixes two styles of labels on a long one, for example 100000 and 1e+06.
  std::string tics() const {
    if (!log) return "autofreq";
    if (high / low >= 1000) return powers();
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
  /// Returns tics at all powers of ten, or at every second, third, … of them.
  std::string powers() const {
    const int first = static_cast<int>(std::ceil(std::log10(low))),
              last = static_cast<int>(std::floor(std::log10(high)));
    const int step = 1 + (last - first) / 9;
    std::string text;
    for (int power = first; power <= last; power += step) {
      const std::string place = gnuplot::number(std::pow(10, power));
      const std::string name = std::abs(power) <= 3 ? place : "1e" + std::to_string(power);
      text += (text.empty() ? "" : ", ") + gnuplot::quote(name) + ' ' + place;
    }
    return '(' + text + ')';
  }
  std::string text() const { return '[' + gnuplot::number(low) + ':' + gnuplot::number(high) + "]\n"; }
};

}  // namespace studies::pictures
