#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <gatefold/core/error.hpp>
#include <string>

#include "common.hpp"
#include "pictures.hpp"
#include "results.hpp"
#include "runs.hpp"

namespace studies {

/// Parse and run the body of main.
///
/// @return 0: done; 2: an option or file does not fit (one line on stderr says which); 1: anything else
inline int study_main(const char* program, CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  const auto refuse = [program](std::string reason, int code) {
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    std::fprintf(stderr, "%s: %s\n", program, reason.c_str());
    return code;
  };
  try {
    app.parse(argc, argv);
    body();
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return refuse(error.what(), 2);
  } catch (const gatefold::Error& error) {
    return refuse(error.what(), 2);
  } catch (const std::exception& error) {
    return refuse(error.what(), 1);
  }
  return 0;
}

}  // namespace studies
