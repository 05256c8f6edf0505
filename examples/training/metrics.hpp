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

/// What validation measures, and whether more of it is better.
struct Goal {
  const char* name;  // of metrics
  bool most;

  bool is_better(double value, double than) const { return most ? value > than : value < than; }
};

/// Whether a run validates after this step.
template <class Options>
bool validates(Index step, const Options& o) {
  return step % o.validate == 0 || step == o.steps;
}

/// What a run has measured, a line of JSON each:
///
///     {"step":10,"loss":3.1}                          training loss of this step, in nats
///     {"step":500,"valid_bits":2.4,"layers":[…]}      what validation gives, by the name of the goal; routing_json.hpp
///     {"step":4000,"best_step":3500,"best_test_bits":2.1,…}   of the best model, at the end
///
/// No line depends on the clock, so that a run that was killed writes the same ones.
class Metrics {
 public:
  using Json = nlohmann::ordered_json;

  explicit Metrics(std::filesystem::path path) : path_(std::move(path)) {}

  /// Take those of a run again, as far as it is.
  /// @param o  of the run: in which steps it measures
  /// @throws FileError without one of them: nobody knows then which step was the best
  template <class Options>
  void reread(Index steps, const Goal& goal, const Options& o) {
    std::ifstream file(path_);
    if (!file)
      throw gatefold::FileError(path_.string() + ": cannot open, and the run needs it (--fresh begins another)");
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
        throw gatefold::FileError(path_.string() + ": expected lines of JSON with a step, got " + line.substr(0, 80));
      if (json["step"].get<Index>() <= steps && !json.contains("best_step")) lines_.push_back(std::move(json));
    }
    auto line = lines_.begin();
    const auto expect = [&](Index step, const char* name) {
      if (line == lines_.end() || (*line)["step"] != step || !line->contains(name))
        throw gatefold::FileError(path_.string() + ": step " + std::to_string(step) + ": expected its line with " +
                                  name + ", as the run is at step " + std::to_string(steps) +
                                  " (--fresh begins another)");
      ++line;
    };
    for (Index step = 1; step <= steps; ++step) {
      if (step % o.log == 0) expect(step, "loss");
      if (validates(step, o)) expect(step, goal.name);
    }
  }
  void add(Json line) { lines_.push_back(std::move(line)); }
  /// The file appears whole.
  void write() const {
    std::string text;
    for (const Json& line : lines_) text += line.dump() + '\n';
    gatefold::io::Replacement file(path_);
    file.write(text.data(), text.size());
    file.commit();
  }

  /// Step and value of the lines that have it.
  std::vector<std::pair<Index, double>> of(const char* name) const {
    std::vector<std::pair<Index, double>> found;
    for (const Json& line : lines_)
      if (line.contains(name) && line[name].is_number())
        found.emplace_back(line["step"].get<Index>(), line[name].get<double>());
    return found;
  }
  /// The last value of that name; null where there is none.
  Json last(const char* name) const {
    for (auto line = lines_.rbegin(); line != lines_.rend(); ++line)
      if (line->contains(name)) return (*line)[name];
    return {};
  }
  const std::vector<Json>& lines() const { return lines_; }
  /// Step and value where validation was best; of none, what all is better than.
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
