#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common.hpp"
#include "files.hpp"
#include "numbers.hpp"

namespace studies {

/// One result of a study: the numbers of its runs, one per seed, and the number in the literature if there is one.
struct Result {
  std::string name;
  std::vector<double> values;                          // one per seed
  std::optional<double> published{}, published_std{};  // values in the literature
  Index published_runs = 10;
};

/// Returns true if the mean over the seeds differs from the published mean by no more than chance explains:
///
///     |mean − published| ≤ 2 sqrt(std² / n + published_std² / published_runs)
///
/// Returns no value if there is no published number, or only one seed. A published number without deviation counts as
/// exact.
inline std::optional<bool> agrees(const Result& r) {
  const std::optional<double> std = deviation(r.values);
  if (!r.published || !std) return {};
  const double of_published = r.published_std.value_or(0);
  return std::abs(mean(r.values) - *r.published) <=
         2 * std::sqrt(*std * *std / static_cast<double>(r.values.size()) +
                       of_published * of_published / static_cast<double>(r.published_runs));
}

namespace results {

/// Returns a text as a cell of a CSV file (RFC 4180), in quotes if necessary.
inline std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

/// Returns the shortest text from which the same number is read, whatever the locale. Returns an empty text for NaN,
/// infinity or no number.
inline std::string number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value).dump() : "";
}

inline std::string word(const std::optional<bool>& value) { return !value ? "" : *value ? "true" : "false"; }

inline Json json(const Result& r) {
  Json j{
      {"name", r.name}, {"mean", mean(r.values)}, {"std", nullptr}, {"seeds", r.values.size()}, {"values", r.values}};
  if (const auto std = deviation(r.values)) j["std"] = *std;
  if (r.published) j["published"] = *r.published;
  if (r.published_std) j["published_std"] = *r.published_std;
  if (const auto same = agrees(r)) j["agrees"] = *same;
  return j;
}

/// A result as texts for tables. Numbers have five digits. Missing values are empty.
struct Texts {
  std::string mean, std, seeds, published, agrees;
};
inline Texts texts(const Result& r) {
  const auto text = [](const std::optional<double>& value, const char* before) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%s%.5g", before, value.value_or(0));
    return value ? std::string(digits) : std::string();
  };
  const std::string same = word(studies::agrees(r));
  return {text(studies::mean(r.values), ""), text(deviation(r.values), "± "), std::to_string(r.values.size()),
          text(r.published, "") + (r.published_std ? ' ' + text(r.published_std, "± ") : ""),
          same.empty()     ? ""
          : same == "true" ? "agrees"
                           : "disagrees"};
}

}  // namespace results

/// Writes out/results.json and out/results.csv.
///
/// @param options  the options of the whole study, except those that do not change results, for example the threads
/// @param curves   the data of the pictures
/// @throws gatefold::FileError if a file cannot be written
inline void write_results(const Common& common, const std::string& program, const Json& options,
                          const std::vector<Result>& all, const Json& curves) {
  Json report{{"program", program}, {"options", options}, {"results", Json::array()}, {"curves", curves}};
  std::string csv = "name,mean,std,seeds,published,published_std,agrees\n";
  for (const Result& r : all) {
    report["results"].push_back(results::json(r));
    csv += results::cell(r.name) + ',' + results::number(mean(r.values)) + ',' + results::number(deviation(r.values)) +
           ',' + std::to_string(r.values.size()) + ',' + results::number(r.published) + ',' +
           results::number(r.published_std) + ',' + results::word(agrees(r)) + '\n';
  }
  make_folder(common.out);
  write_file(common.out / "results.json", report.dump(1) + '\n');
  write_file(common.out / "results.csv", csv);
}

/// Prints the results as a table on stdout.
inline void print_results(const std::vector<Result>& all) {
  std::size_t width = 4;
  for (const Result& r : all) width = std::max(width, r.name.size());
  // The padding of printf counts bytes, and ± is one column wide but two bytes long.
  std::printf("%-*s  %12s   %-10s  %5s  %22s\n", static_cast<int>(width), "", "mean", "std", "seeds", "published");
  for (const Result& r : all) {
    const results::Texts text = results::texts(r);
    std::printf("%-*s  %12s %-*s  %5s", static_cast<int>(width), r.name.c_str(), text.mean.c_str(),
                static_cast<int>(text.std.empty() ? 12 : 13), text.std.c_str(), text.seeds.c_str());
    if (r.published) std::printf("  %*s", static_cast<int>(r.published_std ? 23 : 22), text.published.c_str());
    if (!text.agrees.empty()) std::printf("  %s", text.agrees.c_str());
    std::fputc('\n', stdout);
  }
  std::fflush(stdout);
}

}  // namespace studies
