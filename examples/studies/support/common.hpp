#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cstdint>
#include <filesystem>
#include <gatefold/core/types.hpp>
#include <string>
#include <system_error>
#include <type_traits>

#include "../../support/command_line.hpp"

namespace studies {

using gatefold::Index;

/// The options that all programs of the studies have.
struct Common {
  Index seeds = 5;              // runs per setting; tables have mean ± std over them
  std::uint64_t seed = 1;       // seed of the first run; run i has seed + i
  int threads = 0;              // number of runs at once, each on one thread (0: all cores)
  bool quick = false;           // run a small version in under a minute
  std::filesystem::path out{};  // folder of page.html, results.json, results.csv, pictures and runs/
  bool fresh = false;           // ignore earlier runs in out/runs/
};

/// Returns a folder next to the program, so that a run leaves no file outside the build folder. With --quick it is a
/// different folder, so that a short run does not replace the results of a full study.
inline std::filesystem::path default_folder(bool quick) {
  std::error_code error;
  const auto program = std::filesystem::canonical("/proc/self/exe", error);
  const std::string name = (error ? std::string("study") : program.filename().string()) + (quick ? ".quick" : "");
  return (error ? std::filesystem::path() : program.parent_path()) / "results" / name;
}

using command_line::above_zero;

inline void add_common(CLI::App& app, Common& common) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--seeds", common.seeds, "runs per setting, for mean and deviation")
      ->check(CLI::Range(Index(1), Index(1) << 20))
      ->capture_default_str();
  app.add_option("--seed", common.seed, "seed of the first run; run i has seed + i")
      ->check(command_line::seed(std::uint64_t(1) << 20))  // leaves room for the largest value of --seeds
      ->capture_default_str();
  app.add_option("--threads", common.threads, "runs computed at once, each on one thread (0: all cores)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--quick", common.quick, "run a small version in under a minute");
  app.add_flag("--fresh", common.fresh, "compute all runs again, even if the folder has their results");
  app.add_option_function<std::string>(
      "--out", [&common](const std::string& folder) { common.out = folder; },
      "folder of page.html, results.json, results.csv, pictures and finished runs\n"
      "(default: results/<program> next to the program, results/<program>.quick with --quick)");
  app.parse_complete_callback([&common] {
    if (common.out.empty()) common.out = default_folder(common.quick);
  });
}

/// Makes an option accept several values, as `2,4` or `2 4`. If the option is given several times, it has the values of
/// all of them.
inline CLI::Option* as_list(CLI::Option* option) {
  return option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->capture_default_str();
}

/// Sets a value for --quick unless the option is on the command line.
template <class V>
void unless_given(const CLI::App& app, const char* option, V& value, const std::type_identity_t<V>& small) {
  if (app.count(option) == 0) value = small;
}

}  // namespace studies
