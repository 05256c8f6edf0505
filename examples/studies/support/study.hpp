#pragma once

#include <CLI/App.hpp>
#include <functional>

#include "../../support/command_line.hpp"
#include "common.hpp"
#include "pictures.hpp"
#include "results.hpp"
#include "runs.hpp"

namespace studies {

/// Parse and run the body of main.
///
/// @return 0: done; 2: an option or file does not fit (one line on stderr says which); 1: anything else
inline int study_main(const char* program, CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  return command_line::run(program, app, argc, argv, [&] {
    command_line::limit_memory();
    body();
  });
}

}  // namespace studies
