#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../support/gnuplot.hpp"
#include "../training/metrics.hpp"
#include "evaluate.hpp"

namespace images {

using training::Metrics;

/// Validation measures the accuracy on the validation images. Larger values are better.
inline constexpr training::Goal kGoal{"valid_accuracy", true};

/// Draws loss and validation accuracy of the training on the left, and the test accuracy under each corruption on the
/// right. If gnuplot is missing, prints one line instead.
/// @throws gatefold::FileError if the picture cannot be written
inline void draw(const Metrics& metrics, const Outcome& of_model, const Outcome& of_linear, const std::string& svg) {
  const auto rows = [&](const char* name) {
    std::vector<std::vector<double>> all;
    for (const auto& [step, value] : metrics.of(name)) all.push_back({static_cast<double>(step), value});
    return all;
  };
  const auto loss = rows("loss"), valid = rows(kGoal.name);
  if (loss.empty() || valid.empty()) return;
  std::string script =
      "set multiplot\nset border 3 lc rgb '#808080'\nset tics nomirror out scale 0.5\nset grid ytics lc rgb "
      "'#e6e6e6'\nset key samplen 1.5 vertical maxrows 4 center top at screen 0.25,0.99\n" +
      gnuplot::table("$loss", loss) + gnuplot::table("$valid", valid);
  std::vector<std::vector<double>> severities;
  for (Index s = 0; s <= kSeverities; ++s) {
    severities.push_back({static_cast<double>(s)});
    double linear = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const auto at = [&](const Outcome& o) {
        return 100 * (s == 0 ? o.clean : o.corrupted[kind][static_cast<std::size_t>(s - 1)]);
      };
      severities.back().push_back(at(of_model));
      linear += at(of_linear) / static_cast<double>(kKinds);
    }
    severities.back().push_back(linear);
  }
  script += gnuplot::table("$corrupted", severities) + gnuplot::place(0.07, 0.43, 0.14, 0.81) +
            "set xrange [0:*]\nset xlabel 'step'\nset ylabel 'training loss'\nset y2label 'accuracy on validation'\n" +
            "set y2tics\nset y2range [0:1]\nset yrange [0:*]\n" +
            "plot $loss with lines lc rgb '#89bedc' title 'training loss', $valid axes x1y2 with linespoints pt 7 ps " +
            "0.5 lw 2 lc rgb '#1f5fa8' title 'accuracy on validation'\nunset y2tics\nunset "
            "y2label\nset key at screen 0.76,0.99\n" +
            gnuplot::place(0.6, 0.98, 0.14, 0.81) +
            "set xrange [*:*]\nset xlabel 'severity (0: clean)'\nset ylabel 'accuracy in %'\nset yrange [0:100]\nset "
            "xtics 1\nplot ";
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    script += "$corrupted using 1:" + std::to_string(kind + 2) + " with linespoints pt 7 ps 0.5 lw 2 title '" +
              kCorruptions[kind].name + "', ";
  gnuplot::draw(svg, 1000, 480,
                script + "$corrupted using 1:" + std::to_string(kKinds + 2) +
                    " with lines dt 2 lw 2 lc rgb '#808080' title 'linear classifier, mean'\nunset multiplot\n");
}

}  // namespace images
