#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../../support/html.hpp"
#include "common.hpp"
#include "files.hpp"
#include "numbers.hpp"
#include "results.hpp"
#include "session.hpp"

namespace studies {

namespace pages {

/// Returns the tables, titles (lines in **) and paragraphs of a Markdown text as HTML.
inline std::string from_markdown(const std::string& markdown) {
  std::string body;
  std::vector<html::Cells> rows;
  const auto end_table = [&] {
    if (!rows.empty()) body += html::table(rows.front(), {rows.begin() + 1, rows.end()});
    rows.clear();
  };
  std::istringstream lines(markdown);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("|---")) continue;  // the line below a header
    if (line.starts_with('|')) {
      html::Cells cells;
      for (std::size_t at = 1, next; (next = line.find('|', at)) != std::string::npos; at = next + 1) {
        std::string cell = line.substr(at, next - at);
        cell.erase(0, cell.find_first_not_of(' '));
        cell.erase(cell.find_last_not_of(' ') + 1);
        cells.push_back(std::move(cell));
      }
      rows.push_back(std::move(cells));
      continue;
    }
    end_table();
    if (line.size() > 4 && line.starts_with("**") && line.ends_with("**"))
      body += html::element("h3", line.substr(2, line.size() - 4)) + '\n';
    else if (!line.empty())
      body += html::element("p", line) + '\n';
  }
  end_table();
  return body;
}

/// Returns a row for each option. The name of an option inside of an object is `object.option`, for example
/// `setting.lr`.
inline std::vector<html::Cells> rows_of(const Json& options, const std::string& before = {}) {
  std::vector<html::Cells> rows;
  for (const auto& [name, value] : options.items()) {
    if (value.is_object()) {
      for (html::Cells& row : rows_of(value, before + name + '.')) rows.push_back(std::move(row));
    } else {
      rows.push_back({before + name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  return rows;
}

/// Returns the results as a table. Leaves out the columns of published values if there are none.
inline std::string table_of(const std::vector<Result>& results) {
  const bool published = std::any_of(results.begin(), results.end(), [](const Result& r) { return r.published; });
  std::vector<html::Cells> rows;
  for (const Result& r : results) {
    const results::Texts text = results::texts(r);
    rows.push_back({r.name, text.mean, text.std, text.seeds});
    if (published) rows.back().insert(rows.back().end(), {text.published, text.agrees});
  }
  html::Cells header{"", "mean", "std", "seeds"};
  if (published) header.insert(header.end(), {"published", ""});
  return html::table(header, rows);
}

/// Returns a table with the last measurements of each case in log.jsonl: the means over the seeds, and over the layers
/// if a measurement has a number for each layer. Leaves out lists, for example the shares of the experts.
inline std::string last_measurements(const std::string& log) {
  struct Case {
    std::string name;
    std::map<std::string, std::map<std::string, Json>> last{};  // seed → layer ("" without layers) → line
  };
  std::vector<Case> cases;
  std::vector<std::string> names;
  std::istringstream lines(log);
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text);
    const auto name = line["case"].get<std::string>();
    if (cases.empty() || cases.back().name != name) cases.push_back({name});
    cases.back().last[line["seed"].dump()][line.contains("layer") ? line["layer"].dump() : ""] = line;
    for (const auto& [member, value] : line.items())
      if (member != "case" && member != "seed" && member != "layer" && !value.is_array() &&
          std::find(names.begin(), names.end(), member) == names.end())
        names.push_back(member);
  }
  if (cases.empty()) return {};
  html::Cells header{"case"};
  header.insert(header.end(), names.begin(), names.end());
  std::vector<html::Cells> rows;
  for (const Case& c : cases) {
    html::Cells row{c.name};
    for (const std::string& name : names) {
      std::vector<double> values;
      for (const auto& [seed, layers] : c.last)
        for (const auto& [layer, line] : layers)
          if (line.contains(name)) values.push_back(number(line[name]));
      char digits[40] = "";
      if (!values.empty()) std::snprintf(digits, sizeof digits, "%.5g", mean(values));
      row.emplace_back(digits);
    }
    rows.push_back(std::move(row));
  }
  return html::table(header, rows);
}

/// Returns a text as one word of a shell command, in quotes if necessary.
inline std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=.,:/@%") == std::string::npos;
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + '\'';
}
/// Returns the command that repeats the study, in a checkout of the project.
inline std::string command(const Session& of) {
  // These two programs have different names in run.sh.
  const std::string name = of.program == "vision"           ? "study_vision"
                           : of.program == "classification" ? "finetune"
                                                            : of.program;
  std::string text = "bash examples/run.sh " + name;
  for (const std::string& option : of.options) text += ' ' + shell_word(option);
  return text;
}

}  // namespace pages

/// Writes out/page.html: the command, tables, pictures, last measurements and options of a study. The page refers to no
/// other file. It has the pictures that this process has drawn in the folder, and the measurements of out/log.jsonl.
/// @param options   the options of results.json
/// @param results   can be empty
/// @param markdown  tables in Markdown; can be empty
/// @throws gatefold::FileError if the page cannot be written
inline void write_page(const Common& common, const Json& options, const std::vector<Result>& results,
                       const std::string& markdown = {}) {
  const Session& now = session();
  std::string body = "<p>To repeat this study, run this command in a checkout of gatefold:</p>\n" +
                     html::element("pre", pages::command(now)) + '\n';
  if (!markdown.empty()) body += "<h2>Tables</h2>\n" + pages::from_markdown(markdown);
  if (!results.empty()) body += "<h2>Results</h2>\n" + pages::table_of(results);
  std::string pictures;
  for (const std::filesystem::path& picture : now.pictures)
    if (picture == common.out / picture.filename()) pictures += html::picture(picture);
  if (!pictures.empty()) body += "<h2>Pictures</h2>\n" + pictures;
  if (const std::string last = pages::last_measurements(html::content(common.out / "log.jsonl")); !last.empty())
    body +=
        "<h2>Last measurements during training</h2>\n<p>Means over the seeds and the layers. docs/studies/README.md "
        "explains the columns.</p>\n" +
        last;
  body += "<h2>Options</h2>\n" + html::table({}, pages::rows_of(options));
  write_file(common.out / "page.html", html::page(now.program + ": " + now.title, body));
}

/// Ends a study: writes its page, and prints the last line on stdout, with the time since the start and the folder.
inline void finish(const Common& common, const Json& options, const std::vector<Result>& results,
                   const std::string& markdown = {}) {
  write_page(common, options, results, markdown);
  std::printf("%.1f s; results, pictures and page.html: %s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - session().start).count(),
              common.out.c_str());
}

}  // namespace studies
