#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "../support/gnuplot.hpp"

namespace fashion {

/// The measurements of a training run that the picture shows.
struct Picture {
  std::vector<double> loss{};            // per logging interval
  std::vector<double> step{};            // last training step of each logging interval
  double first_epoch = 1;                // epoch of the first accuracy; above 1 for a continued run
  std::vector<double> test_accuracy{};   // [epochs] from 0 to 1
  std::vector<double> train_accuracy{};  // [epochs] from 0 to 1
  std::vector<std::vector<double>>
      busiest{};  // per epoch and layer: share of the layer's picks that its busiest expert has
  /// [layer][expert][class] the share of a class's picks that the expert has, between 0 and 1.
  std::vector<std::vector<std::vector<double>>> routing{};
  std::vector<std::string> class_names{};
};

namespace plot {

using namespace gnuplot;  // quote, number, …

/// Returns the number of columns in which the routing maps of the layers are arranged.
inline std::size_t columns(std::size_t layers) { return layers <= 3 ? 1 : layers <= 8 ? 2 : 3; }

/// Returns a script that draws loss, accuracy and load below each other, in the part of the picture left of `split`.
/// Lengths are in pixels.
inline std::string curves(const Picture& picture, double width, double height, double split) {
  const double left = 76, bottom = 60, top = height - 44, gap = 104;
  const double tall = (top - bottom - 2 * gap) / 3;
  // Places one of the three panels: 0 is at the top, 2 at the bottom.
  const auto panel = [&](int row) {
    const double y = top - row * (tall + gap) - tall;
    return place(left / width, split / width, y / height, (y + tall) / height);
  };
  std::ostringstream script = stream();
  script << "set grid ytics lt 1 lw 1 lc rgb '#e6e6e6'\nset border 3 lw 1 lc rgb '#808080'\n"
         << "set tics nomirror out scale 0.5\nset datafile missing 'NaN'\n";
  if (const std::size_t n = std::min(picture.loss.size(), picture.step.size()); n > 0) {
    // The logged losses are noisy, so a second curve shows their mean over about a fortieth of the run.
    const std::size_t window = n / 80 * 2 + 1;
    std::vector<std::vector<double>> rows;
    for (std::size_t i = 0; i < n; ++i) {
      // The mean is over a window centred on the step, so that it does not lag behind a loss that falls fast.
      const std::size_t first = i - std::min(i, window / 2), last = std::min(n, i + window / 2 + 1);
      double sum = 0;
      for (std::size_t j = first; j < last; ++j) sum += picture.loss[j];
      rows.push_back({picture.step[i], picture.loss[i], sum / static_cast<double>(last - first)});
    }
    script
        << table("$loss", rows) << panel(0)
        << "set title 'Training loss' font ',15'\nset xlabel 'step' offset 0,0.4\nset ylabel 'loss'\nset yrange [0:*]\n"
        << "set key top right samplen 2 textcolor rgb '#404040'\nplot ";
    if (window > 1) script << "$loss using 1:2 with lines lw 1 lc rgb '#b5cfeb' title 'as logged', ";
    script << "$loss using 1:3 with lines lw 2 lc rgb '#1f5fa8' "
           << (window > 1 ? "title 'mean of " + std::to_string(window) + "'" : "notitle") << '\n';
  }
  if (const std::size_t epochs = std::max(picture.train_accuracy.size(), picture.test_accuracy.size()); epochs > 0) {
    auto percent = [](const std::vector<double>& shares, std::size_t i) {
      return i < shares.size() ? 100 * shares[i] : std::nan("");
    };
    std::vector<std::vector<double>> rows;
    for (std::size_t i = 0; i < epochs; ++i) {
      rows.push_back({picture.first_epoch + static_cast<double>(i), percent(picture.train_accuracy, i),
                      percent(picture.test_accuracy, i)});
    }
    std::ostringstream title = stream();
    title << "Accuracy";
    if (!picture.test_accuracy.empty()) {
      title << std::fixed << std::setprecision(2) << ": " << 100 * picture.test_accuracy.back() << " % on the test set";
    }
    script << table("$accuracy", rows) << panel(1) << "set title " << quote(title.str())
           << " font ',15'\nset xlabel 'epoch' offset 0,0.4\nset ylabel 'accuracy in %'\n"
           << "set xrange [" << picture.first_epoch - 0.25 << ':'
           << picture.first_epoch + static_cast<double>(epochs) - 0.75 << "]\nset xtics " << picture.first_epoch << ','
           << (epochs + 9) / 10
           << "\nset yrange [*:*]\nset offsets 0,0,graph 0.05,graph 0.05\nset key bottom right samplen 2 textcolor rgb "
              "'#404040'\n"
           << "plot $accuracy using 1:2 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#e08a1e' title 'training', "
           << "$accuracy using 1:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1f5fa8' title 'test'\n";
  }
  if (!picture.busiest.empty() && !picture.busiest.front().empty()) {
    std::vector<std::vector<double>> rows;
    for (const auto& layers : picture.busiest) {
      rows.push_back({picture.first_epoch + static_cast<double>(rows.size())});
      for (const double share : layers) rows.back().push_back(100 * share);
    }
    script << table("$load", rows) << panel(2)
           << "set linetype 1 lc rgb '#1f5fa8'\nset linetype 2 lc rgb '#e08a1e'\nset title 'Load: picks of the busiest "
              "expert' font ',15'\nset ylabel 'share in %'\nset yrange [0:*]\n"
           << "set key bottom right samplen 2 maxrows 2\nplot ";
    for (std::size_t l = 0; l < picture.busiest.front().size(); ++l)
      script << (l ? ", " : "") << "$load using 1:" << l + 2 << " with linespoints pt 7 ps 0.5 lw 2 title 'layer " << l
             << "'";
    if (!picture.routing.empty() && !picture.routing.front().empty())
      script << ", " << 100 / static_cast<double>(picture.routing.front().size())
             << " with lines dt 2 lw 1 lc rgb '#808080' title 'even'";
    script << '\n';
  }
  return script.str();
}

/// Returns a script that draws one routing map per layer, all with the same colour scale. The names of the classes are
/// below the lowest map of each column. Lengths are in pixels; the picture has width x height pixels, and `left` is the
/// left end of the maps.
inline std::string maps(const Picture& picture, double width, double height, double left) {
  const std::size_t layers = picture.routing.size(), across = columns(layers), down = (layers + across - 1) / across;
  std::size_t classes = picture.class_names.size();
  double most = 0;
  for (const auto& layer : picture.routing)
    for (const auto& expert : layer) {
      classes = std::max(classes, expert.size());
      for (const double share : expert) most = std::isfinite(share) ? std::max(most, share) : most;
    }
  if (classes == 0) return "";
  // The colour scale ends at the next multiple of 10 %, so that small differences between nearly even shares do not use
  // the whole scale.
  const double scale = most > 0 ? std::min(100.0, 10 * std::ceil(10 * most)) : 100.0;

  const double right = width - 24, top = height - 104, bottom = 84, title = 38, gap = 36;
  const double wide = (right - left - gap * static_cast<double>(across - 1)) / static_cast<double>(across);
  const double tall = (top - bottom - title * static_cast<double>(down - 1)) / static_cast<double>(down);
  std::ostringstream script = stream();
  script << "unset grid\nunset offsets\nunset xlabel\nset key off\nset border 15 lw 1 lc rgb '#808080'\n"
         << "set palette defined (0 '#ffffff', 0.15 '#dbe9f6', 0.4 '#89bedc', 0.7 '#2b7bba', 1 '#08306b')\n"
         << "set xrange [-0.5:" << static_cast<double>(classes) - 0.5 << "]\nset cbrange [0:" << scale << "]\n"
         << "set cbtics 0," << scale / 2 << " format '%g %%' scale 0 offset 0,0.6 textcolor rgb '#404040' font ',11'\n"
         << "set label 1 'Share of a class''s picks per expert' at screen " << left / width << ',' << 1 - 26 / height
         << " left font ',15' textcolor rgb '#202020'\n"
         << "set colorbox user horizontal origin " << (right - 166) / width << ',' << 1 - 32 / height << " size "
         << 150 / width << ',' << 12 / height << "\n";
  for (std::size_t l = 0; l < layers; ++l) {
    const auto& layer = picture.routing[l];
    if (layer.empty()) continue;
    const double x = left + static_cast<double>(l % across) * (wide + gap);
    const double y = top - static_cast<double>(l / across) * (tall + title) - tall;
    script << "$map << EOD\n";
    for (const auto& expert : layer) {
      for (std::size_t c = 0; c < classes; ++c) {
        script << number(c < expert.size() ? 100 * expert[c] : std::nan("")) << ' ';
      }
      script << '\n';
    }
    script << "EOD\n"
           << place(x / width, (x + wide) / width, y / height, (y + tall) / height) << "set title 'layer " << l
           << "' font ',13' offset 0,-0.5\n"
           << "set yrange [" << static_cast<double>(layer.size()) - 0.5 << ":-0.5]\n"
           << "set ytics " << (layer.size() + 15) / 16 << " scale 0\n"
           << (l % across == 0 ? "set ylabel 'expert' offset 1,0\n" : "unset ylabel\n");
    // Maps without a map below them show the names of the classes. The last row can have fewer maps.
    if (l + across >= layers) {
      script << "set xtics rotate by 40 right scale 0 textcolor rgb '#404040' (";
      for (std::size_t c = 0; c < classes; ++c) {
        const std::string name = c < picture.class_names.size() ? picture.class_names[c] : std::to_string(c);
        script << (c ? ", " : "") << quote(name) << ' ' << c;
      }
      script << ")\n";
    } else {
      script << "unset xtics\n";
    }
    // The map is drawn with `pixels`, because otherwise gnuplot would write an image into a second file.
    script << "plot $map matrix with image pixels\nunset label 1\nunset colorbox\n";
  }
  return script.str();
}

/// The size of the picture in pixels. Maps with more rows need a higher picture.
struct Size {
  double width, height;
};
inline Size size(const Picture& picture) {
  if (picture.routing.empty()) return {640, 860};
  std::size_t experts = 1;
  for (const auto& layer : picture.routing) experts = std::max(experts, layer.size());
  const std::size_t layers = picture.routing.size(), across = columns(layers), down = (layers + across - 1) / across;
  const double row = 38 + std::clamp(18.0 * static_cast<double>(experts), 110.0, 300.0);
  return {across < 3 ? 1200.0 : 1500.0, std::max(860.0, 150 + row * static_cast<double>(down))};
}

/// Returns the gnuplot script without the commands that set terminal and output.
inline std::string script(const Picture& picture) {
  const auto [width, height] = size(picture);
  const bool routed = !picture.routing.empty();
  const double split = routed ? 540 : width - 30;
  std::string text = "set multiplot\nset title textcolor rgb '#202020'\nset tics textcolor rgb '#404040'\n";
  text += curves(picture, width, height, split);
  if (routed) text += maps(picture, width, height, split + 90);
  return text + "unset multiplot\n";
}

}  // namespace plot

/// Draws one SVG with gnuplot: loss, accuracy and load on the left, the routing on the right. If gnuplot is missing,
/// prints one line instead.
/// @throws gatefold::FileError if the picture cannot be written; an existing file is unchanged then
inline void draw(const Picture& picture, const std::string& svg_path) {
  const auto [width, height] = plot::size(picture);
  gnuplot::draw(svg_path, width, height, plot::script(picture));
}

}  // namespace fashion
