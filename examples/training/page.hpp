#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <gatefold/io/replacement.hpp>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../support/gnuplot.hpp"
#include "../support/html.hpp"
#include "metrics.hpp"
#include "run.hpp"

namespace training {

namespace page {

using Json = Metrics::Json;

/// Returns the lines of the metrics that have routing data, in the order of steps.
inline std::vector<Json> routed(const Metrics& metrics) {
  std::vector<Json> lines;
  std::copy_if(metrics.lines().begin(), metrics.lines().end(), std::back_inserter(lines),
               [](const Json& line) { return line.contains("layers"); });
  return lines;
}

/// Returns a gnuplot script that draws the number `name` of each layer against the steps, one curve per layer. Missing
/// values are NaN.
inline std::string lines_of(const std::vector<Json>& routed, const char* name, const std::string& title, double most) {
  std::vector<std::vector<double>> rows;
  const std::size_t layers = routed.front()["layers"].size();
  for (const Json& line : routed) {
    rows.push_back({line["step"].get<double>()});
    for (const Json& layer : line["layers"]) rows.back().push_back(layer.value(name, std::nan("")));
  }
  std::string script = gnuplot::table("$lines", rows) + "set title " + gnuplot::quote(title) +
                       "\nset yrange [0:" + gnuplot::number(most) + "]\nplot ";
  for (std::size_t l = 0; l < layers; ++l)
    script += (l ? ", $lines using 1:" : "$lines using 1:") + std::to_string(l + 2) +
              " with linespoints pt 7 ps 0.4 lw 2 lc palette cb " + gnuplot::number(static_cast<double>(l)) +
              " title 'layer " + std::to_string(l + 1) + "'";
  return script + '\n';
}

/// Returns a gnuplot script that draws a map of one layer: the share of the picks that each expert has, against steps.
inline std::string load_of(const std::vector<Json>& routed, std::size_t layer) {
  std::vector<std::vector<double>> rows(routed.front()["layers"][layer]["load"].size());
  for (const Json& line : routed) {
    const auto load = line["layers"][layer]["load"].get<std::vector<double>>();
    double all = 0;
    for (const double picks : load) all += picks;
    for (std::size_t e = 0; e < rows.size(); ++e) rows[e].push_back(100 * load[e] / all);
  }
  return gnuplot::map(std::move(rows));
}

/// Returns a gnuplot script. On the left, the script draws one map per layer, with the load of the layer's experts. On
/// the right, it draws entropy and fluctuation of all layers.
inline std::string routing_script(const std::vector<Json>& routed, double width, double height) {
  const std::size_t layers = routed.front()["layers"].size(), steps = routed.size();
  const auto experts = static_cast<double>(routed.front()["layers"][0]["load"].size());
  const double top = height - 56, bottom = 56, gap = 30, half = 0.47 * width;
  const double tall = (top - bottom - gap * static_cast<double>(layers - 1)) / static_cast<double>(layers);
  // The colour scale ends at three times the even share. Experts with larger shares also have the darkest colour.
  std::string script =
      "set multiplot\nset border 3 lc rgb '#808080'\nset tics nomirror out scale 0.5 textcolor rgb '#404040'\n"
      "set title textcolor rgb '#202020'\nset key off\n"
      "set palette defined (0 '#ffffff', 0.15 '#dbe9f6', 0.4 '#89bedc', 0.7 '#2b7bba', 1 '#08306b')\nset cbrange [0:" +
      gnuplot::number(std::min(100.0, 300 / experts)) +
      "]\nset cbtics format '%g %%' scale 0 textcolor rgb '#404040'\nset colorbox user origin " +
      gnuplot::number((half + 8) / width) + ',' + gnuplot::number(bottom / height) + " size " +
      gnuplot::number(12 / width) + ',' + gnuplot::number((top - bottom) / height) +
      "\nset label 1 'Share of the picks that each expert has' at screen " + gnuplot::number(50 / width) + ',' +
      gnuplot::number(1 - 16 / height) + " left font ',14'\nset ylabel 'expert' offset 1,0\nset ytics " +
      gnuplot::every(routed.front()["layers"][0]["load"].size(), 8) + '\n';
  for (std::size_t l = 0; l < layers; ++l) {
    const double y = top - static_cast<double>(l) * (tall + gap) - tall;
    script += gnuplot::place(50 / width, half / width, y / height, (y + tall) / height) + "set title 'layer " +
              std::to_string(l + 1) + "' offset 0,-0.6\n";
    if (l + 1 < layers) {
      script += "unset xtics\n";
    } else {
      script += "set xlabel 'step'\nset xtics (";
      const std::size_t every = (steps + 5) / 6;
      for (std::size_t s = 0; s < steps; s += every)
        script += (s ? ", '" : "'") + std::to_string(routed[s]["step"].get<Index>()) + "' " + std::to_string(s);
      script += ")\n";
    }
    script += load_of(routed, l) + "unset label 1\nunset colorbox\n";
  }
  const double left = (half + 110) / width, middle = (top + bottom) / 2;
  script += "set palette defined (0 '#9ecae1', 0.5 '#2b7bba', 1 '#e08a1e')\nset cbrange [0:" +
            gnuplot::number(std::max(1.0, static_cast<double>(layers) - 1)) +
            "]\nset xtics auto nomirror out scale 0.5\nset ytics auto\nset key bottom left horizontal samplen 1.5\nset "
            "xrange [0:*]\nset grid ytics lc rgb '#e6e6e6'\nunset ylabel\nunset xlabel\n" +
            gnuplot::place(left, 1 - 20 / width, (middle + 30) / height, top / height) +
            lines_of(routed, "entropy",
                     "Entropy of the probabilities, in nats (even: " +
                         gnuplot::number(std::round(100 * std::log(experts)) / 100) + ')',
                     1.05 * std::log(std::max(experts, 2.0)));
  script += "set key off\nset xlabel 'step'\n" +
            gnuplot::place(left, 1 - 20 / width, bottom / height, (middle - 30) / height) +
            lines_of(routed, "fluctuation", "Share of the items whose experts are others than before", 1);
  return script + "unset multiplot\n";
}

}  // namespace page

/// Draws load, entropy and fluctuation of each layer. Writes one page with the pictures, the results and the options of
/// the run; the page refers to no other file. If gnuplot is missing or no layer has routing data, the page has no
/// picture of the routing.
/// @throws gatefold::FileError if a file cannot be written
inline void write_page(const Folder& folder, const Metadata& options, const Metrics& metrics) {
  const std::vector<page::Json> routed = page::routed(metrics);
  std::filesystem::remove(folder.routing());
  if (!routed.empty()) {
    const double width = 1000, height = 120 + 110 * std::max(3.0, static_cast<double>(routed.front()["layers"].size()));
    gnuplot::draw(folder.routing(), width, height, page::routing_script(routed, width, height));
  }
  std::vector<html::Cells> results, given;
  for (const auto& [name, value] : metrics.lines().back().items())
    if (!value.is_structured()) results.push_back({name, value.dump()});
  for (const auto& [name, value] : options)
    if (name != "program" && value.size() <= 64) given.push_back({name, value});
  const std::string text = html::page(
      "A run of " + options.at("program"),
      html::picture(folder.picture()) + html::picture(folder.routing()) + html::picture(folder.shards_picture()) +
          "<section><div><h2>What came out</h2>\n" + html::table({}, results) + "</div>\n<div><h2>Options</h2>\n" +
          html::table({}, given) + "</div></section>\n");
  gatefold::io::Replacement file(folder.page());
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace training
