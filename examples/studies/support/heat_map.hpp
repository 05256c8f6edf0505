#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "../../support/gnuplot.hpp"
#include "frame.hpp"
#include "range.hpp"

namespace studies {

/// A matrix drawn in colour, with the first row at the top. If no value is negative, it uses one hue. Otherwise it uses
/// two hues, one for each sign.
struct HeatMap {
  std::string title, x_label, y_label;
  std::vector<std::string> columns{}, rows{};
  std::vector<std::vector<double>> values{};  // [rows][columns]
  bool numbers = true;                        // true: numbers are printed in the cells if they fit
  bool log = false;                           // true: the colours have a logarithmic scale
};

namespace pictures {

/// Formats a value of the map. All cells have the same number of decimals: fewer if the largest value is large, one
/// more if the values differ little. If the colours have a logarithmic scale, or if the largest value is positive and
/// below 0.01 or is at least 1e4, the cells have scientific notation without decimals.
/// @param spread  largest minus smallest value of the map
inline std::string cell_text(double value, double largest, double spread, bool log) {
  std::ostringstream out = gnuplot::stream();
  if (log || (largest > 0 && largest < 0.01) || largest >= 1e4) {
    out << std::scientific << std::setprecision(0) << value;
  } else {
    const int digits = largest < 10 ? 2 : largest < 100 ? 1 : 0;
    out << std::fixed << std::setprecision(digits + (spread > 0 && spread < std::pow(10, 1 - digits) ? 1 : 0)) << value;
  }
  const std::string text = out.str();
  return text.find_first_of("123456789") == std::string::npos && text[0] == '-' ? text.substr(1) : text;
}

/// Returns a gnuplot command, for example `set xtics (…)`, with at most `most` of the names, evenly spaced. `axis` is
/// the part before the parenthesis.
inline std::string tics(const char* axis, const std::vector<std::string>& names, std::size_t most) {
  const std::size_t step = std::max<std::size_t>(1, (names.size() + most - 1) / most);
  std::string text = std::string(axis) + " (";
  for (std::size_t i = 0; i < names.size(); i += step)
    text += (i ? ", " : "") + gnuplot::quote(names[i]) + ' ' + std::to_string(i);
  return text + ")\n";
}

inline std::string part(const HeatMap& map, const Frame& frame) {
  const std::size_t rows = std::max<std::size_t>(map.rows.size(), 1),
                    columns = std::max<std::size_t>(map.columns.size(), 1);
  const auto value = [&](std::size_t r, std::size_t c) {
    return r < map.values.size() && c < map.values[r].size() ? map.values[r][c] : std::nan("");
  };
  Range range{.log = map.log};
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) range.add(value(r, c));
  const double largest = std::max(std::abs(range.low), std::abs(range.high));
  const double spread = range.high - range.low;
  const bool two_hues = !map.log && range.low < 0, nothing = range.empty();
  if (two_hues) {
    range.high = largest;
    range.low = -largest;
  } else if (!map.log && (range.low < range.high / 2 || range.high - range.low < 0.02 * range.high)) {
    // The colour scale begins at 0, so that small values are pale, and nearly equal values show no pattern.
    range.low = 0;
  }
  if (nothing || range.low == range.high) range.widen(0);

  const double left = 46 + text_width(map.rows), right = 74, top = 38;
  const double cell_width = (kWidth - left - right) / static_cast<double>(columns);
  const double names = text_width(map.columns);
  const bool rotate = names + 6 > cell_width && names > 14;
  const double bottom = 54 + (rotate ? std::min(0.64 * names, 100.0) - 8 : 0);
  const double cell_height = (kHeight - top - bottom) / static_cast<double>(rows);

  std::ostringstream script = gnuplot::stream();
  std::string cells = "$cells << EOD\n", missing = "$missing << EOD\n";
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double v = value(r, c);
      const std::string place = std::to_string(c) + ' ' + std::to_string(r) + ' ';
      if (!std::isfinite(v)) {
        missing += place + "–\n";
        continue;
      }
      const double share = two_hues ? std::abs(v) / range.high : range.share(v);
      texts.push_back(cell_text(v, largest, spread, map.log));
      cells += place + texts.back() + (share > 0.55 ? " 0xffffff " : " 0x303030 ") + gnuplot::number(v) + '\n';
    }
  }
  const double font = std::min({11.0, 11 * (cell_width - 4) / std::max(text_width(texts, 11), 1.0), cell_height - 3});
  script << cells << "EOD\n"
         << missing << "EOD\n"
         << place(frame, map.title, map.x_label, map.y_label, left, right, bottom, top)
         << "unset grid\nunset logscale\nset key off\nset border 15 lw 1 lc rgb '#808080'\n"
         << (two_hues
                 ? "set palette defined (0 '#b2182b', 1 '#ef8a62', 2 '#fddbc7', 3 '#f7f7f7', 4 '#d1e5f0', 5 '#67a9cf', "
                   "6 '#2166ac')\n"
                 : "set palette defined (0 '#ffffff', 0.15 '#dbe9f6', 0.4 '#89bedc', 0.7 '#2b7bba', 1 '#08306b')\n")
         << "set cbrange " << range.text() << (map.log ? "set logscale cb\n" : "") << "set colorbox user origin "
         << frame.x(kWidth - right + 12) << ',' << frame.y(bottom) << " size " << frame.width * 12 / kWidth << ','
         << frame.height * (kHeight - top - bottom) / kHeight << "\nset cbtics " << range.tics()
         << " scale 0 offset -0.8,0 font ',11'\n"
         << "set xrange [-0.5:" << static_cast<double>(columns) - 0.5 << "]\nset yrange ["
         << static_cast<double>(rows) - 0.5 << ":-0.5]\n"
         << tics(rotate ? "set xtics rotate by 40 right scale 0" : "set xtics norotate scale 0", map.columns, 24)
         << tics("set ytics scale 0", map.rows, 24);
  if (nothing) {
    script << "set label 4 'no data' at graph 0.5, graph 0.5 center textcolor rgb '#808080'\nplot NaN notitle\n";
  } else {
    // The cells are drawn as boxes, because gnuplot would write an image into a second file.
    script << "plot $cells using 1:2:(0.5):(0.5):5 with boxxyerror fs solid 1 border lc rgb '#ffffff' fc palette";
    if (map.numbers && font >= 7)
      script << ", $cells using 1:2:3:4 with labels font '," << font << "' textcolor rgb variable";
    if (texts.size() < rows * columns) script << ", $missing using 1:2:3 with labels textcolor rgb '#a0a0a0'";
    script << '\n';
  }
  script << "unset label\nunset colorbox\nunset logscale\nset xtics norotate scale 0.5\nset ytics scale 0.5\n";
  return script.str();
}

}  // namespace pictures
}  // namespace studies
