#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <gatefold/io/replacement.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../support/gnuplot.hpp"
#include "run.hpp"

namespace training {

namespace page {

/// Returns a gnuplot script that draws one bar per shard: the seconds in which it computed, waited and moved bytes.
inline std::string times_of(const std::vector<nlohmann::ordered_json>& shards) {
  std::string script = "$times << EOD\n";
  for (const auto& line : shards) {
    script += "\"" + line["shard"].dump() + " (" + line["rank"].dump() + ")\"";
    for (const char* part : {"computing", "waiting", "moving"})
      script += ' ' + gnuplot::number(line[part].get<double>());
    script += '\n';
  }
  return script +
         "EOD\nset title 'Seconds in steps, by shard (and its process)'\nset style data histograms\n"
         "set style histogram rowstacked\nset style fill solid noborder\nset boxwidth 0.7\nset yrange [0:*]\n"
         "set grid ytics lc rgb '#e6e6e6'\nset key at screen 0.25,0.055 center center horizontal samplen 1\n"
         "plot $times using 2:xtic(1) lc rgb '#2b7bba' title 'computes', $times using 3 lc rgb '#c8c8c8' "
         "title 'waits for others', $times using 4 lc rgb '#e08a1e' title 'moves bytes'\n";
}

/// Returns a gnuplot script that draws a map of one layer: the share of all slots that each expert has on each shard.
inline std::string slots_of(const std::vector<nlohmann::ordered_json>& shards, std::size_t layer) {
  std::vector<std::vector<double>> rows;
  double all = 0;
  for (const auto& line : shards) {
    rows.push_back(line["slots"][layer].get<std::vector<double>>());
    for (const double n : rows.back()) all += n;
  }
  for (auto& row : rows)
    for (double& n : row) n = all > 0 ? 100 * n / all : 0;
  return gnuplot::map(std::move(rows));
}

/// Returns a gnuplot script that draws the times of the shards on the left, and one map per layer on the right: the
/// slots of each expert.
inline std::string shards_script(const std::vector<nlohmann::ordered_json>& shards, double width, double height) {
  const std::size_t layers = shards.front()["slots"].size();
  const double top = height - 40, bottom = 76, half = 0.5 * width, gap = 30;
  std::string script =
      "set multiplot\nset border 3 lc rgb '#808080'\nset tics nomirror out scale 0.5 textcolor rgb '#404040'\n"
      "set title textcolor rgb '#202020'\n" +
      gnuplot::place(60 / width, (half - 30) / width, bottom / height, top / height) + times_of(shards);
  if (layers == 0) return script + "unset multiplot\n";
  const double tall = (top - bottom - gap * static_cast<double>(layers - 1)) / static_cast<double>(layers);
  const auto experts = static_cast<double>(shards.front()["slots"][0].size());
  script += "set key off\nunset grid\nset style data lines\nunset xtics\nset ytics " +
            gnuplot::every(shards.size(), 10) +
            "\nset ylabel 'shard' offset 1,0\nset palette "
            "defined (0 '#ffffff', 0.15 '#dbe9f6', 0.4 '#89bedc', 0.7 '#2b7bba', 1 '#08306b')\nset cbrange [0:" +
            gnuplot::number(std::min(100.0, 300 / experts)) +
            "]\nset cbtics format '%g %%' scale 0 textcolor rgb '#404040'\n";
  for (std::size_t l = 0; l < layers; ++l) {
    const double y = top - static_cast<double>(l) * (tall + gap) - tall;
    script +=
        gnuplot::place((half + 40) / width, (width - 90) / width, y / height, (y + tall) / height) +
        "set title 'Share of the slots by expert and shard, layer " + std::to_string(l + 1) + "' offset 0,-0.6\n" +
        (l + 1 == layers
             ? "set xlabel 'expert'\nset xtics " + gnuplot::every(shards.front()["slots"][0].size(), 16) + " nomirror\n"
             : "") +
        slots_of(shards, l);
  }
  return script + "unset multiplot\n";
}

}  // namespace page

/// Writes the measurements of the shards since the program began, one JSON object per line, and draws them. Unlike the
/// metrics, these measurements depend on the clock.
/// @param shards  the result of ShardRecord::lines(); if it is empty, no file is written
/// @throws gatefold::FileError if a file cannot be written
inline void write_shards(const Folder& folder, const std::vector<nlohmann::ordered_json>& shards) {
  if (shards.empty()) return;
  std::string text;
  for (const auto& line : shards) text += line.dump() + '\n';
  gatefold::io::Replacement file(folder.shards());
  file.write(text.data(), text.size());
  file.commit();
  const double width = 1000, height = 116 + std::max(200.0, 120 * static_cast<double>(shards.front()["slots"].size()));
  gnuplot::draw(folder.shards_picture(), width, height, page::shards_script(shards, width, height));
}

}  // namespace training
