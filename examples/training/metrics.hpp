#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <gatefold/core/error.hpp>
#include <gatefold/core/types.hpp>
#include <gatefold/io/replacement.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace training {

using gatefold::Index;

/// The quantity that validation measures, and whether larger values are better.
struct Goal {
  const char* name;  // name in the metrics
  bool most;

  bool is_better(double value, double than) const { return most ? value > than : value < than; }
};

/// Returns true if a run with these options validates after this step.
template <class Options>
bool validates(Index step, const Options& o) {
  return step % o.validate == 0 || step == o.steps;
}

/// The measurements of a run, one JSON object per line:
///
///     {"step":10,"loss":3.1}                          training loss of this step, in nats
///     {"step":500,"valid_bits":2.4,"layers":[…]}      validation: the value of the Goal, with Goal::name as its key
///                                                     (here valid_bits); layers: see routing_json.hpp
///     {"step":4000,"best_step":3500,"best_test_bits":2.1,…}   measurements of the best model, at the end
///
/// No line depends on the clock, so a run that was killed and continued writes the same lines.
class Metrics {
 public:
  using Json = nlohmann::ordered_json;

  explicit Metrics(std::filesystem::path path) : path_(std::move(path)) {}

  /// Reads the lines of a run that is continued, up to the step `steps` of its saved state.
  /// @param o  the options of the run, which determine the measured steps
  /// @throws FileError if a line is missing, because the best step would be unknown
  template <class Options>
  void reread(Index steps, const Goal& goal, const Options& o) {
    std::ifstream file(path_);
    if (!file)
      throw gatefold::FileError(path_.string() +
                                ": cannot open this file, which the run needs (--fresh starts a new run)");
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
        throw gatefold::FileError(path_.string() + ": expected lines of JSON with a step, got " + line.substr(0, 80));
      if (json["step"].get<Index>() <= steps && !json.contains("best_step")) lines_.push_back(std::move(json));
    }
    auto line = lines_.begin();
    const auto expect = [&](Index step, const char* name) {
      if (line == lines_.end() || (*line)["step"] != step || !line->contains(name))
        throw gatefold::FileError(path_.string() + ": step " + std::to_string(step) + ": expected a line with " + name +
                                  ", because the run is at step " + std::to_string(steps) +
                                  " (--fresh starts a new run)");
      ++line;
    };
    for (Index step = 1; step <= steps; ++step) {
      if (step % o.log == 0) expect(step, "loss");
      if (validates(step, o)) expect(step, goal.name);
    }
  }
  void add(Json line) { lines_.push_back(std::move(line)); }
  /// Writes the file. If writing fails, the existing file is unchanged.
  void write() const {
    std::string text;
    for (const Json& line : lines_) text += line.dump() + '\n';
    gatefold::io::Replacement file(path_);
    file.write(text.data(), text.size());
    file.commit();
  }

  /// Returns (step, value) of all lines of the metrics that have a number with this name.
  std::vector<std::pair<Index, double>> of(const char* name) const {
    std::vector<std::pair<Index, double>> found;
    for (const Json& line : lines_)
      if (line.contains(name) && line[name].is_number())
        found.emplace_back(line["step"].get<Index>(), line[name].get<double>());
    return found;
  }
  /// Returns the value with this name in the last line that has it, or null if no line has it.
  Json last(const char* name) const {
    for (auto line = lines_.rbegin(); line != lines_.rend(); ++line)
      if (line->contains(name)) return (*line)[name];
    return {};
  }
  const std::vector<Json>& lines() const { return lines_; }
  /// Returns (step, value) of the best validation. If there was no validation, returns step 0 and ±∞, the worst value.
  std::pair<Index, double> best(const Goal& goal) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::pair<Index, double> found{0, goal.most ? -kInfinity : kInfinity};
    for (const auto& at : of(goal.name))
      if (goal.is_better(at.second, found.second)) found = at;
    return found;
  }

 private:
  std::filesystem::path path_;
  std::vector<Json> lines_{};
};

}  // namespace training
