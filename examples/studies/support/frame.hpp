#pragma once

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "../../support/gnuplot.hpp"

namespace studies::pictures {

inline constexpr double kWidth = 520, kHeight = 380;  // size of a panel in pixels

/// The place of a panel in a picture. All members are shares of the picture's width or height, measured from the lower
/// left.
struct Frame {
  double left, bottom, width, height;
  /// Convert distances in pixels within the panel to places in the picture.
  double x(double pixels) const { return left + width * pixels / kWidth; }
  double y(double pixels) const { return bottom + height * pixels / kHeight; }
};

/// Estimates the width of a text in pixels. The layout of a panel needs this width before gnuplot measures the text.
inline double text_width(const std::string& text, double font = 12) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return 0.56 * font * static_cast<double>(characters);
}
inline double text_width(const std::vector<std::string>& texts, double font = 12) {
  double most = 0;
  for (const std::string& text : texts) most = std::max(most, text_width(text, font));
  return most;
}

/// Returns gnuplot commands that place the plot and its texts in the panel. The last four arguments are the margins of
/// the plot in pixels. The texts have fixed places in the panel, because gnuplot would move them by the size of the
/// tics.
inline std::string place(const Frame& frame, const std::string& title, const std::string& x_label,
                         const std::string& y_label, double left, double right, double bottom, double top) {
  const double center = (left + kWidth - right) / 2, room = 2 * std::min(center, kWidth - center) - 8;
  const double x = frame.x(center), y = frame.y((bottom + kHeight - top) / 2);
  std::ostringstream script = gnuplot::stream();
  script << gnuplot::place(frame.x(left), frame.x(kWidth - right), frame.y(bottom), frame.y(kHeight - top))
         << "set label 1 " << gnuplot::quote(title) << " at screen " << x << ',' << frame.y(kHeight - 20)
         << " center font '," << 14 * std::min(1.0, room / text_width(title, 14))
         << "' textcolor rgb '#202020'\nset label 2 " << gnuplot::quote(x_label) << " at screen " << x << ','
         << frame.y(13) << " center\nset label 3 " << gnuplot::quote(y_label) << " at screen " << frame.x(12) << ','
         << y << " center rotate\n";
  return script.str();
}

}  // namespace studies::pictures
