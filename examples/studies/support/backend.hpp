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

/// @param costs  whether the program will measure costs
/// @throws ArgumentError unless the program has the backend, and can measure costs on it if `costs`
inline void expect_backend(const std::string& backend, bool costs) {
  using gatefold::expect;
#ifndef GATEFOLD_EXAMPLES_CUDA
  expect(backend == "cpu", "options", "--backend", "cpu, as this program was built without CUDA", backend);
#endif
  expect(backend == "cpu" || !costs, "options", "--backend", "cpu with --costs, which measures host memory", backend);
}

/// Adds the backend to the values that a result depends on. Adds nothing for the CPU, so that older runs stay valid.
inline void note_backend(Json& options, const std::string& backend) {
  if (backend != "cpu") options["backend"] = backend;
}

}  // namespace studies
