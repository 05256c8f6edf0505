#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <gatefold/core/error.hpp>
#include <string>

#include "run.hpp"

namespace studies {

inline void add_backend(CLI::App& app, std::string& backend) {
  app.add_option("--backend", backend, "where models are trained")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

/// @param costs  whether they are asked for
/// @throws ArgumentError unless the program has the backend, and measures what is asked for on it
inline void expect_backend(const std::string& backend, bool costs) {
  using gatefold::expect;
#ifndef GATEFOLD_EXAMPLES_CUDA
  expect(backend == "cpu", "options", "--backend", "cpu, as this program was built without CUDA", backend);
#endif
  expect(backend == "cpu" || !costs, "options", "--backend", "cpu with --costs, which counts the host's memory",
         backend);
}

/// Among what a result depends on: of the CPU nothing, as of the runs from before there was another.
inline void note_backend(Json& options, const std::string& backend) {
  if (backend != "cpu") options["backend"] = backend;
}

}  // namespace studies
