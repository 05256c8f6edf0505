#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <gatefold/core/error.hpp>
#include <string>

#include "run.hpp"

namespace studies {

inline void add_backend(CLI::App& app, std::string& backend) {
  app.add_option("--backend", backend, "backend that trains the models")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

/// @param costs  true if the program will measure costs
/// @throws ArgumentError if the program was built without the backend, or if `costs` is true and the backend is not the
///   CPU, because costs include host memory
inline void expect_backend(const std::string& backend, bool costs) {
  using gatefold::expect;
#ifndef GATEFOLD_EXAMPLES_CUDA
  expect(backend == "cpu", "options", "--backend", "cpu, as this program was built without CUDA", backend);
#endif
  expect(backend == "cpu" || !costs, "options", "--backend", "cpu with --costs, which measures host memory", backend);
}

/// Adds the backend to the options that are stored with a result. Adds nothing for the CPU, so that stored runs from
/// before there was this option stay valid.
inline void note_backend(Json& options, const std::string& backend) {
  if (backend != "cpu") options["backend"] = backend;
}

}  // namespace studies
