#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "run.hpp"

namespace studies {

/// Returns the measurements of a run during training as lines of JSON, one object per line. docs/studies/README.md
/// describes the members of a line.
/// @param result  the result of the run. Its member `curve`, or without this member the result itself, has lists of
///         equal length: `step`, `epoch` or `iteration` says when a measurement was taken, the others are measurements.
///         An element is one number, one number per layer, or for `share` one number per expert. Results without these
///         lists give no lines
/// @param log  more lists of measurements, at the same times; null if there are none
inline std::string json_lines(const Run& run, const Json& result, const Json& log = {}) {
  constexpr std::array<std::string_view, 5> of_layers{"entropy", "load_variation", "norm", "rank_entropy", "on_itself"};
  Json curve = result.contains("curve") ? result["curve"] : result;
  if (log.is_object()) curve.update(log);
  std::string when;
  for (const char* name : {"step", "epoch", "iteration"})
    if (curve.contains(name)) when = name;
  std::string lines;
  for (std::size_t at = 0; !when.empty() && at < curve[when].size(); ++at) {
    const Json begin{{"case", run.name.substr(0, run.name.rfind(".seed"))},
                     {"seed", run.options.value("seed", Json())},
                     {when, curve[when][at]}};
    Json whole = begin, layers = Json::array();
    for (const auto& [name, values] : curve.items()) {
      if (name == when || !values.is_array() || values.size() != curve[when].size()) continue;
      const Json& value = values[at];
      if (value.is_number() || (name == "share" && value.is_array())) {
        whole[name] = value;
      } else if (value.is_array() && std::find(of_layers.begin(), of_layers.end(), name) != of_layers.end()) {
        for (std::size_t l = 0; l < value.size(); ++l) {
          if (layers.size() == l) layers.push_back(begin);
          layers[l]["layer"] = l + 1;
          layers[l][name] = value[l];
        }
      }
    }
    if (whole.size() > begin.size()) lines += whole.dump() + '\n';
    for (const Json& layer : layers) lines += layer.dump() + '\n';
  }
  return lines;
}

}  // namespace studies
