#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <gatefold/core/error.hpp>
#include <set>
#include <string>
#include <utility>

#include "../../support/command_line.hpp"
#include "common.hpp"
#include "page.hpp"
#include "pictures.hpp"
#include "results.hpp"
#include "runs.hpp"
#include "session.hpp"

namespace studies {

/// @throws ArgumentError if an option with several values has a value twice, because the runs and results of both would
///   have the same name
inline void refuse_twice(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options(nullptr)) {
    if (option->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll) continue;
    std::set<std::pair<double, std::string>> seen;
    for (const std::string& text : option->results()) {
      double number = 0;
      const bool is_number = CLI::detail::lexical_cast(text, number);
      gatefold::expect(seen.emplace(number, is_number ? "" : text).second, "options", option->get_name().c_str(),
                       "distinct values", text);
    }
  }
}

/// Parses the command line and calls body(), which does the work of the program.
///
/// @return 0 after success, 2 if an option or a file is not valid (one line on stderr names it), and 1
///   after any other error
inline int study_main(const char* program, CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  return command_line::run(program, app, argc, argv, [&] {
    command_line::limit_memory();
    refuse_twice(app);
    session() = {.program = program, .title = app.get_description(), .options = {argv + 1, argv + argc}};
    body();
  });
}

}  // namespace studies
