#include "study.hpp"

#include <CLI/App.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/study.hpp"
#include "costs.hpp"
#include "learn.hpp"
#include "tables.hpp"

namespace studies::lm {

namespace {

/// The command line of a study of language models.
struct Options {
  Common common{.seeds = 3};
  Setting setting{};
  std::filesystem::path data{};
  std::vector<std::string> only{};  // names of the cases to run; if empty, all cases
  bool tables = false, costs = false;
};

/// Returns the path of the data, relative to the program in build/<preset>/examples/studies/.
std::filesystem::path default_data() {
  std::error_code error;
  return std::filesystem::canonical("/proc/self/exe", error).parent_path() / "../../../text/bible_words";
}

void add_options(CLI::App& app, Options& o) {
  add_common(app, o.common);
  add_setting(app, o.setting);
  app.add_option_function<std::string>(
      "--data", [&o](const std::string& folder) { o.data = folder; },
      "folder with train.txt, valid.txt and test.txt, words separated by spaces\n(default: build/text/bible_words, "
      "which "
      "examples/text/prepare.sh makes)");
  as_list(
      app.add_option("--only", o.only, "compute only these cases; cases that they are compared with are not added"));
  app.add_flag("--tables", o.tables,
               "compute nothing; print tables, draw pictures and write the page of the finished cases");
  app.add_flag("--costs", o.costs, "only measure and print time and memory of each case");
}

/// Returns the runs of all cases in the order of the list, one per seed. The most important cases come first, so that
/// after an hour a table already has complete rows.
std::vector<Run> runs_of(const std::vector<Case>& cases, const Common& common, const Text& text) {
  std::vector<Run> runs;
  for (const Case& c : cases)
    add_seeds(runs, c.name, common.seed, common.seeds, [&](std::uint64_t seed) {
      Json depends{{"case", c.name}, {"setting", c.setting.json()}, {"text", text.json()}};
      return Run{{}, depends, [&c, &text, seed](const Report& report) { return learn(c, text, Seed{seed}, report); }};
    });
  return runs;
}

/// Returns the stored results of the runs, and writes the measurements of these runs to log.jsonl. The result of a run
/// that is not finished has no value.
std::vector<std::optional<Json>> finished(const std::vector<Run>& runs, const Common& common) {
  std::vector<std::optional<Json>> results;
  std::string log;
  for (const Run& run : runs) {
    auto one = runs::stored(common.out / "runs" / (run.name + ".json"), run.options);
    if (one) log += json_lines(run, one->result, one->log);
    results.push_back(one ? std::optional(std::move(one->result)) : std::nullopt);
  }
  make_folder(common.out);
  write_file(common.out / "log.jsonl", log);
  return results;
}

/// Returns the results of the cases whose runs for all seeds are done.
/// @param found  the result of each run in the order of runs_of(); no value if a run is not done
Done whole_cases(const std::vector<Case>& cases, Index seeds, const std::vector<std::optional<Json>>& found) {
  Done done;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<Json> results;
    for (Index s = 0; s < seeds; ++s)
      if (const auto& one = found[i * static_cast<std::size_t>(seeds) + static_cast<std::size_t>(s)])
        results.push_back(*one);
    if (static_cast<Index>(results.size()) == seeds) done[cases[i].name] = std::move(results);
  }
  return done;
}

void run_study(const char* program, Options& o, Comparison (*make)(const Setting&, Index)) {
  o.setting.validate();
  expect_backend(o.setting.backend, o.costs);
  if (o.data.empty()) o.data = default_data();
  const Text text = read_text(o.data, o.setting.threshold);
  Comparison comparison = make(o.setting, text.vocabulary.size());
  if (!o.only.empty()) {
    for (const std::string& name : o.only)
      gatefold::expect(
          std::any_of(comparison.cases.begin(), comparison.cases.end(), [&](const Case& c) { return c.name == name; }),
          "options", "--only", "the name of a case", name);
    std::erase_if(comparison.cases,
                  [&](const Case& c) { return std::find(o.only.begin(), o.only.end(), c.name) == o.only.end(); });
  }
  if (o.costs) return print_costs(comparison, text);

  const std::vector<Run> runs = runs_of(comparison.cases, o.common, text);
  std::vector<std::optional<Json>> found;
  if (o.tables) {
    found = finished(runs, o.common);
  } else {
    for (Json& result : compute(o.common, runs)) found.emplace_back(std::move(result));
  }
  const Done done = whole_cases(comparison.cases, o.common.seeds, found);
  const std::string tables = all_tables(comparison, done, o.common.seeds, text);
  write_file(o.common.out / "tables.md", tables);
  const std::filesystem::path picture = o.common.out / (std::string(program) + ".svg");
  const Json options{
      {"setting", o.setting.json()}, {"text", text.json()}, {"seed", o.common.seed}, {"seeds", o.common.seeds}};
  if (o.tables) {
    std::fputs(tables.c_str(), stdout);
    draw_all(picture, comparison, done);
    return write_page(o.common, options, {}, tables);
  }
  std::vector<Result> results;
  Json layers = Json::object();
  for (const Case& c : comparison.cases) {
    const std::vector<Json>& of = done.at(c.name);
    for (const char* key : {"valid", "valid_attacked", "valid_harm", "test", "test_attacked", "test_harm"})
      results.push_back({c.name + '.' + key, values(of, key)});
    for (const Json& run : of) layers[c.name].push_back({{"curve", run["curve"]}, {"layers", run["layers"]}});
  }
  write_results(o.common, program, options, results, layers);
  draw_all(picture, comparison, done);
  print_results(results);
  finish(o.common, options, results, tables);
}

}  // namespace

int study_of_language(const char* program, const char* what, int argc, char** argv,
                      Comparison (*make)(const Setting&, Index)) {
  CLI::App app(what);
  Options o;
  add_options(app, o);
  return study_main(program, app, argc, argv, [&] {
    if (o.common.quick) {
      make_quick(app, o.setting);
      unless_given(app, "--seeds", o.common.seeds, 1);
    }
    run_study(program, o, make);
  });
}

}  // namespace studies::lm
