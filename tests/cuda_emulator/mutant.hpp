// Tests with deliberate mistakes. A subject is a check of a kernel that can be compiled with one of several mistakes.
// Without a mistake, its values must be right, and the emulator must report nothing.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <regex>
#include <string>

#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {

/// The mistakes of a test, and `none`. Each test defines this type.
enum class Mutation;

/// The result of a subject: the report of the emulator or an error of CUDA ("" if there was none), and whether the
/// values were equal to those of a naive loop.
struct Outcome {
  std::string report;
  bool right = false;
};

template <Mutation mutation, class Subject>
Outcome run(const Subject& subject) {
  Outcome outcome;
  try {
    outcome.right = subject.template operator()<mutation>();
  } catch (const Fault& fault) {
    outcome.report = fault.what();
  }
  if (const cudaError_t error = cudaGetLastError()) outcome.report += cudaGetErrorName(error);
  for (const std::string& race : races()) outcome.report += race + "\n";
  races().clear();
  return outcome;
}

template <class Subject, class Mistakes = Mutation>
void check_unmutated(const Subject& subject) {
  const Outcome outcome = run<Mistakes::none>(subject);
  CHECK(outcome.right);
  CHECK(outcome.report == "");
}

/// Checks that the report matches the pattern. The values may be right or wrong.
template <Mutation mutation, class Subject>
void expect_report(const Subject& subject, const std::string& pattern) {
  check_unmutated(subject);
  const Outcome outcome = run<mutation>(subject);
  CAPTURE(pattern);
  INFO("report: ", outcome.report);
  CHECK(std::regex_search(outcome.report, std::regex(pattern)));
}

template <Mutation mutation, class Subject>
void expect_wrong_value(const Subject& subject) {
  check_unmutated(subject);
  const Outcome outcome = run<mutation>(subject);
  CHECK_FALSE(outcome.right);
  CHECK(outcome.report == "");
}

}  // namespace gatefold::cuda_emulator
