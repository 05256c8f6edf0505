#pragma once

#include <malloc.h>
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "report.hpp"

namespace studies::lm {

/// The command line of a study of language models.
struct Options {
  Common common{.seeds = 3};
  Setting setting{};
  std::filesystem::path data{};
  std::vector<std::string> only{};  // cases; none: all
  bool tables = false, costs = false;
};

/// From the program, build/<preset>/examples/studies/<program>.
inline std::filesystem::path default_data() {
  std::error_code error;
  return std::filesystem::canonical("/proc/self/exe", error).parent_path() / "../../../text/bible_words";
}

inline void add_options(CLI::App& app, Options& o) {
  add_common(app, o.common);
  add_setting(app, o.setting);
  app.add_option_function<std::string>(
      "--data", [&o](const std::string& folder) { o.data = folder; },
      "folder of train.txt, valid.txt and test.txt, words between spaces\n(default: build/text/bible_words, which "
      "examples/text/prepare.sh makes)");
  as_list(app.add_option("--only", o.only, "these cases alone; those they are compared with are not added"));
  app.add_flag("--tables", o.tables, "compute nothing: tables and pictures of the cases that are done");
  app.add_flag("--costs", o.costs, "time and memory of each case, in turn, and nothing else");
}

/// Cases of a study, in the order of their weight, their headings, and what is told beside perplexities.
struct Comparison {
  std::vector<Case> cases;
  std::vector<Group> groups;
  std::function<std::string(const std::vector<Case>&, const Done&)> more_tables;
  std::function<void(const std::filesystem::path& out, const std::vector<Case>&, const Done&)> draw;
};

inline std::string all_tables(const Comparison& comparison, const Done& done, const Options& o, const Text& text) {
  char line[200];
  std::snprintf(line, sizeof line,
                "%zu of %zu cases, %lld seeds each; %lld words to learn from, %lld different ones.\n\n", done.size(),
                comparison.cases.size(), static_cast<long long>(o.common.seeds),
                static_cast<long long>(text.train.size()), static_cast<long long>(text.vocabulary.size()));
  std::string tables = line;
  for (const Group& group : comparison.groups) tables += perplexity_table(group, comparison.cases, done);
  return tables + comparison.more_tables(comparison.cases, done);
}

/// Milliseconds of a training step and of reading as much, and bytes that are held once the first steps are done: of
/// all cases in turn, so that whatever else the machine does meets all of them. The fastest of some rounds.
inline void print_costs(const Comparison& comparison, const Text& text) {
  struct Cost {
    std::unique_ptr<Model> model;
    double bytes = 0, step = 1e300, loss = 1e300;
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto held = [] {
    const auto heap = mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
  };
  std::vector<Cost> costs(comparison.cases.size());
  for (int round = 0; round < 8; ++round)
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const Case& c = comparison.cases[i];
      Cost& cost = costs[i];
      Blocks blocks(text.train, c.setting);
      blocks.read(round);
      const double before = held();
      if (round == 0) cost.model = c.make(c.setting, Seed{1});
      const auto time = [&](double& fastest, const auto& work) {
        const auto start = now();
        for (int i = 0; i < 4; ++i) work();
        fastest = std::min(fastest, std::chrono::duration<double, std::milli>(now() - start).count() / 4);
      };
      time(cost.step, [&] { cost.model->step(blocks.x, blocks.next); });
      time(cost.loss, [&] { cost.model->surprises(blocks.x, blocks.next); });
      if (round == 0) cost.bytes = held() - before;
    }
  std::puts(
      "| model | parameters | ms a step | over its baseline | ms to read | over it | MiB | over it |\n"
      "|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto baseline =
        static_cast<std::size_t>(std::find_if(comparison.cases.begin(), comparison.cases.end(),
                                              [&](const Case& c) { return c.name == comparison.cases[i].baseline; }) -
                                 comparison.cases.begin());
    if (baseline == costs.size()) continue;
    const Cost &cost = costs[i], &of = costs[baseline];
    std::printf("| %s | %lld | %.2f | %.3f | %.2f | %.3f | %.1f | %.3f |\n", comparison.cases[i].label.c_str(),
                static_cast<long long>(cost.model->parameters()), cost.step, cost.step / of.step, cost.loss,
                cost.loss / of.loss, cost.bytes / 1048576, cost.bytes / of.bytes);
  }
}

/// Everything that a study of language models does, but its cases.
/// @param make  (setting, vocabulary) → Comparison
template <class F>
void run_study(const char* program, Options& o, const F& make) {
  const auto start = std::chrono::steady_clock::now();
  o.setting.validate();
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
    for (const Run& run : runs)
      found.push_back(runs::stored(o.common.out / "runs" / (run.name + ".json"), run.options));
  } else {
    for (Json& result : compute(o.common, runs)) found.emplace_back(std::move(result));
  }
  const Done done = whole_cases(comparison.cases, o.common.seeds, found);
  const std::string tables = all_tables(comparison, done, o, text);
  make_folder(o.common.out);
  write_file(o.common.out / "tables.md", tables);
  comparison.draw(o.common.out, comparison.cases, done);
  if (o.tables) {
    std::fputs(tables.c_str(), stdout);
    return;
  }
  std::vector<Result> results;
  Json layers = Json::object();
  for (const Case& c : comparison.cases) {
    const std::vector<Json>& of = done.at(c.name);
    for (const char* key : {"valid", "valid_attacked", "valid_harm", "test", "test_attacked", "test_harm"})
      results.push_back({c.name + '.' + key, values(of, key)});
    for (const Json& run : of) layers[c.name].push_back({{"curve", run["curve"]}, {"layers", run["layers"]}});
  }
  Json options{
      {"setting", o.setting.json()}, {"text", text.json()}, {"seed", o.common.seed}, {"seeds", o.common.seeds}};
  write_results(o.common, program, options, results, layers);
  print_results(results);
  print_end(o.common, start);
}

/// The body of main.
template <class F>
int study_of_language(const char* program, const char* what, int argc, char** argv, const F& make) {
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
