// The main function of programs that run on the emulator. After every test case, it checks for errors that no assertion
// checks: data races, memory and handles that were not freed, and failures that a test has set but that did not happen.
//
// A test case that expects races removes them from races().
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <iostream>
#include <string>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct CaseCheck : doctest::IReporter {
  explicit CaseCheck(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData& data) override {
    test_case = &data;
    findings.clear();
    begin();
  }
  // Every path through the subcases is a separate run.
  void test_case_reenter(const doctest::TestCaseData&) override {
    look();
    begin();
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    // A case that ends early may leave objects behind, and has already failed.
    if (stats.failure_flags == doctest::TestCaseFailureReason::None) look();
    for (const std::string& finding : findings) {
      std::cout << test_case->m_file.c_str() << ":" << test_case->m_line << ": ERROR: " << test_case->m_name << ": "
                << finding << "\n";
    }
    // doctest has counted this case already and offers no later place to fail it.
    if (!findings.empty() && stats.testCaseSuccess) ++doctest::detail::g_cs->numTestCasesFailed;
  }

  void begin() {
    options() = initial;
    reset_runtime();
    races().clear();
    Memory::device().fail_at(-1);
    allocations = Memory::device().live();
    handles = live_handles();
  }
  void look() {
    findings.insert(findings.end(), races().begin(), races().end());
    for (const std::string& failure : pending_failures()) findings.push_back(failure);
    expect_same("device allocations", allocations, Memory::device().live());
    expect_same("streams, events, graphs, cuBLAS handles and pinned allocations", handles, live_handles());
  }
  void expect_same(const std::string& what, std::size_t before, std::size_t after) {
    if (before == after) return;
    findings.push_back(what + ": expected " + std::to_string(before) + " alive as before the case, got " +
                       std::to_string(after));
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

  const Options initial = options();
  const doctest::TestCaseData* test_case = nullptr;
  std::size_t allocations = 0, handles = 0;
  std::vector<std::string> findings;
};
REGISTER_LISTENER("case_check", 1, CaseCheck);

}  // namespace
}  // namespace gatefold::cuda_emulator
