#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../support/gnuplot.hpp"
#include "../training/metrics.hpp"
#include "ngram.hpp"

namespace language {

using training::Metrics;

/// Validation measures bits per token on the first tokens of the validation text. Smaller values are better.
inline constexpr training::Goal kGoal{"valid_bits", false};

/// Draws the bits per token of training and validation against steps, and the bits per token of the n-grams as a
/// reference. If gnuplot is missing, prints one line instead.
/// @throws gatefold::FileError if the picture cannot be written
inline void draw(const Metrics& metrics, const Ngram& n, const Options& o, const std::string& svg) {
  const auto loss = metrics.of("loss"), valid = metrics.of(kGoal.name);
  if (loss.empty()) return;
  // The loss of single batches is noisy, so the curve shows the mean around each step, over a fortieth of the run.
  const std::size_t half = loss.size() / 80;
  std::vector<std::vector<double>> training, validation;
  for (std::size_t i = 0; i < loss.size(); ++i) {
    const std::size_t first = i - std::min(i, half), last = std::min(loss.size(), i + half + 1);
    double sum = 0;
    for (std::size_t j = first; j < last; ++j) sum += loss[j].second;
    training.push_back({static_cast<double>(loss[i].first), sum / static_cast<double>(last - first) / std::log(2.0)});
  }
  for (const auto& [step, bits] : valid) validation.push_back({static_cast<double>(step), bits});
  std::string script =
      "set border 3 lc rgb '#808080'\nset tics nomirror out scale 0.5\nset grid ytics lc rgb '#e6e6e6'\n" +
      gnuplot::table("$training", training) + gnuplot::table("$validation", validation) +
      "set xrange [0:*]\nset xlabel 'step'\nset ylabel 'bits per " + o.unit +
      "'\nplot $training with lines lw 2 lc rgb " +
      "'#89bedc' title 'training', $validation with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1f5fa8' title " +
      "'validation', " + gnuplot::number(n.valid) + " lw 2 dt 2 lc rgb '#e08a1e' title 'Kneser-Ney " +
      std::to_string(n.order) + "-grams on validation'\n";
  gnuplot::draw(svg, 760, 480, script);
}

}  // namespace language
