#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../../support/gnuplot.hpp"
#include "frame.hpp"
#include "numbers.hpp"
#include "range.hpp"

namespace studies {

struct Curve {
  std::string title;
  std::vector<double> x, y;
  std::vector<double> error{};  // ± std; may be empty

  /// Adds a point whose y is the mean over the seeds, with the deviation over the seeds as error. All points need the
  /// same number of seeds. With one seed there is no error.
  void add(double at, const std::vector<double>& of_seeds) {
    x.push_back(at);
    y.push_back(mean(of_seeds));
    if (const auto std = deviation(of_seeds)) error.push_back(*std);
  }
};

/// A panel of curves. Curves with at most kFewPoints points have markers, and their errors are bars. The errors of
/// longer curves are bands.
struct Lines {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Curve> curves{};
  std::vector<double> marks{};  // each x at which there is a vertical dashed line
  bool from_zero = false;       // true: the y axis begins at 0, for example for shares
  // The smallest and largest possible y. Error bars and bands are cut there.
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
};

namespace pictures {

inline constexpr std::size_t kFewPoints = 12;  // curves with at most this many points have markers
inline constexpr std::size_t kLegendRows = 8;  // longer legends are left out, to leave room for the curves

/// Returns one of the colours of Okabe and Ito, which colour-blind people can distinguish. Yellow is left out, because
/// it is invisible on paper.
inline std::string colour(std::size_t curve) {
  constexpr std::array colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#404040"};
  return "lc rgb '" + std::string(colours[curve % colours.size()]) + "' dt " +
         std::to_string(1 + curve / colours.size());
}

/// A centred legend above the plot, with as many columns as fit.
struct Legend {
  std::size_t rows = 0;
  Legend(const std::vector<Curve>& curves, double width) {
    std::vector<std::string> titles;
    for (const Curve& curve : curves)
      if (!curve.title.empty()) titles.push_back(curve.title);
    if (titles.empty()) return;
    const auto fit = static_cast<std::size_t>(width / (text_width(titles, 11) + 50));
    const std::size_t columns = std::clamp<std::size_t>(fit, 1, titles.size());
    rows = (titles.size() + columns - 1) / columns;
    if (rows > kLegendRows) rows = 0;
  }
  double height() const { return rows ? 6 + 16 * static_cast<double>(rows) : 0; }
};

/// A point of a curve: x, y, lower end and upper end of the error.
using Point = std::vector<double>;

inline std::vector<Point> points(const Curve& c, const Lines& panel) {
  std::vector<Point> all;
  for (std::size_t i = 0; i < std::min(c.x.size(), c.y.size()); ++i) {
    const double error = i < c.error.size() && std::isfinite(c.error[i]) ? c.error[i] : 0;
    const double y = c.y[i], low = std::min(y, panel.least), high = std::max(y, panel.most);
    all.push_back({c.x[i], y, std::max(y - error, low), std::min(y + error, high)});
  }
  return all;
}

/// Returns the points of a curve to draw: at most one per pixel of a long curve. Cuts errors at the lower end of a
/// logarithmic axis.
inline std::vector<Point> visible(const std::vector<Point>& all, const Range& x, const Range& y, double pixels) {
  std::vector<Point> seen;
  double last = -1;
  for (const Point& p : all) {
    const double pixel = pixels * x.share(p[0]);
    if (all.size() > kFewPoints && y.takes(p[1]) && std::abs(pixel - last) < 1 && &p != &all.back()) continue;
    last = pixel;
    seen.push_back(p);
    if (y.log) seen.back()[2] = std::max(p[2], y.low);
  }
  return seen;
}

/// Returns the part of gnuplot's plot command that draws one curve.
inline std::string element(const Curve& c, std::size_t index) {
  const std::string data = "$curve" + std::to_string(index), look = colour(index) + " lw 2";
  const std::string title = c.title.empty() ? "notitle" : "title " + gnuplot::quote(c.title);
  constexpr std::array markers{7, 5, 9, 13, 11, 6, 4};  // gnuplot's filled circle, square, triangle, diamond, …
  const std::string marker = " pt " + std::to_string(markers[index % markers.size()]) + " ps 0.7 ";
  const bool few = c.x.size() <= kFewPoints, errors = !c.error.empty();
  if (few)
    return data + (errors ? " using 1:2:3:4 with yerrorlines " : " using 1:2 with linespoints ") + look + marker +
           title;
  const std::string line = data + " using 1:2 with lines " + look + ' ' + title;
  const std::string band =
      data + " using 1:3:4 with filledcurves fs transparent solid 0.18 noborder " + colour(index) + " notitle, ";
  return errors ? band + line : line;
}

inline std::string part(const Lines& panel, const Frame& frame) {
  Range x{.log = panel.log_x}, y{.log = panel.log_y};
  std::vector<std::vector<Point>> curves;
  std::set<double> places;
  std::size_t most = 0;
  for (const Curve& c : panel.curves) {
    curves.push_back(points(c, panel));
    most = std::max(most, curves.back().size());
    for (const Point& p : curves.back()) {
      if (!x.takes(p[0]) || !y.takes(p[1])) continue;
      x.add(p[0]);
      places.insert(p[0]);
      for (const double value : {p[1], p[2], p[3]}) y.add(value);
    }
  }
  const bool nothing = x.empty();
  for (const double mark : panel.marks) x.add(mark);
  if (panel.from_zero) y.add(0);
  x.widen(most <= kFewPoints ? 0.04 : 0);
  y.widen(0.05);

  const double left = 80, right = 22;
  const Legend legend(panel.curves, kWidth - left - right);
  std::ostringstream script = gnuplot::stream();
  std::string elements;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (std::none_of(curves[i].begin(), curves[i].end(),
                     [&](const Point& p) { return x.takes(p[0]) && y.takes(p[1]); }))
      continue;
    script << gnuplot::table(("$curve" + std::to_string(i)).c_str(), visible(curves[i], x, y, kWidth - left - right));
    elements += (elements.empty() ? "" : ", ") + element(panel.curves[i], i);
  }
  script << place(frame, panel.title, panel.x_label, panel.y_label, left, right, 54, 38 + legend.height())
         << "set border 3 lw 1 lc rgb '#808080'\nset grid ytics lt 1 lw 1 lc rgb '#e6e6e6'\n"
         << "set xrange " << x.text() << "set yrange " << y.text() << (x.log ? "set logscale x\n" : "")
         << (y.log ? "set logscale y\n" : "") << "set xtics norotate " << x.tics() << "\nset ytics " << y.tics()
         << '\n';
  if (x.log && !nothing && places.size() <= kFewPoints) {
    std::string tics;
    for (const double place : places) tics += (tics.empty() ? "" : ", ") + gnuplot::number(place);
    script << "set xtics (" << tics << ")\n";
  }
  for (const double mark : panel.marks) {
    if (!x.takes(mark)) continue;
    script << "set arrow from " << mark << ", graph 0 to " << mark << ", graph 1 nohead dt 2 lw 1 lc rgb '#808080'\n";
  }
  if (legend.rows > 0) {
    script << "set key at screen " << frame.x((left + kWidth - right) / 2) << ',' << frame.y(kHeight - 32)
           << " center top vertical Left reverse maxrows " << legend.rows
           << " samplen 1.6 font ',11' textcolor rgb '#404040'\n";
  } else {
    script << "set key off\n";
  }
  if (nothing) script << "set label 4 'no data' at graph 0.5, graph 0.5 center textcolor rgb '#808080'\n";
  script << "plot " << (nothing ? "NaN notitle" : elements) << "\nunset label\nunset arrow\nunset logscale\n";
  return script.str();
}

}  // namespace pictures
}  // namespace studies
