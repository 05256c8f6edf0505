#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "../../support/gnuplot.hpp"
#include "heat_map.hpp"
#include "lines.hpp"
#include "session.hpp"

namespace studies {

using Panel = std::variant<Lines, HeatMap>;

namespace pictures {

inline std::string script(const std::vector<Panel>& panels, std::size_t across) {
  const std::size_t down = (panels.size() + across - 1) / across;
  std::string text = "set multiplot\nset tics nomirror out scale 0.5 textcolor rgb '#404040'\nset format '%g'\n";
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double wide = 1 / static_cast<double>(across), tall = 1 / static_cast<double>(down);
    const Frame frame{static_cast<double>(i % across) * wide, 1 - static_cast<double>(i / across + 1) * tall, wide,
                      tall};
    text += std::visit([&](const auto& panel) { return part(panel, frame); }, panels[i]);
  }
  return text + "unset multiplot\n";
}

}  // namespace pictures

/// Draws one SVG with `across` panels in each row. If gnuplot is missing, it draws nothing and prints one line, only
/// the first time.
/// @throws gatefold::FileError if the picture cannot be written
inline void draw(const std::filesystem::path& svg, const std::vector<Panel>& panels, int across) {
  if (panels.empty()) return;
  const std::size_t columns = std::min(static_cast<std::size_t>(std::max(across, 1)), panels.size());
  const std::size_t rows = (panels.size() + columns - 1) / columns;
  gnuplot::draw(svg, pictures::kWidth * static_cast<double>(columns), pictures::kHeight * static_cast<double>(rows),
                pictures::script(panels, columns));
  if (gnuplot::available()) session().pictures.push_back(svg);
}

}  // namespace studies
