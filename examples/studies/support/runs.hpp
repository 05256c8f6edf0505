#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <gatefold/core/error.hpp>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bar.hpp"
#include "common.hpp"
#include "files.hpp"
#include "log.hpp"
#include "run.hpp"

namespace studies {

namespace runs {

struct Stopped {};  // thrown to end a run after a different run has failed

inline void check(const std::vector<Run>& runs) {
  std::set<std::string> names;
  for (const Run& run : runs) {
    const bool fits = !run.name.empty() && run.name.front() != '.' &&
                      run.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.-") == std::string::npos;
    gatefold::expect(fits, "studies::compute", "name of a run", "a file name of [a-z0-9_.-]", run.name);
    gatefold::expect(run.cost > 0, "studies::compute", "cost of a run", "a positive number", run.cost);
    gatefold::expect(names.insert(run.name).second, "studies::compute", "name of a run", "distinct names", run.name);
  }
}

/// Returns a checksum that detects changes of a stored result.
inline std::uint64_t digest(const Json& result) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : result.dump()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

/// The contents of a run's file, without the options.
struct Stored {
  Json result;
  Json log;  // measurements that are only for log.jsonl; null if there are none
};

/// Reads a stored result. Returns no value if the file is missing, damaged or changed, or has different options. Older
/// files without a digest are accepted.
inline std::optional<Stored> stored(const std::filesystem::path& file, const Json& options) {
  std::ifstream in(file);
  if (!in) return {};
  Json run = Json::parse(in, nullptr, false);
  if (!run.is_object() || !run.contains("options") || !run.contains("result")) return {};
  if (run["options"].dump() != options.dump()) return {};
  if (run.contains("digest") && run["digest"] != digest(run["result"])) return {};
  return Stored{std::move(run["result"]), run.contains("log") ? std::move(run["log"]) : Json()};
}

/// Stores a result. Its member `log`, if there is one, is stored outside of the result and of the digest, so that more
/// measurements for log.jsonl change neither results nor digests.
/// @return the file's content, so that values that JSON cannot store (NaN) do not depend on a restart
inline Stored store(const std::filesystem::path& file, const Json& options, const Json& result) {
  Stored now{Json::parse(result.dump()), {}};
  if (now.result.is_object() && now.result.contains("log")) {
    now.log = std::move(now.result["log"]);
    now.result.erase("log");
  }
  Json run{{"options", options}, {"result", now.result}, {"digest", digest(now.result)}};
  if (!now.log.empty()) run["log"] = now.log;
  write_file(file, run.dump() + '\n');
  return now;
}

}  // namespace runs

/// Returns results in the order of `runs`. The results have the same bits for any number of threads and restarts.
///
/// Complete runs in out/runs/ with the same options are read from there. The other runs are computed, common.threads at
/// once, and each result is written as soon as it is complete. At the end, out/log.jsonl is written, with the
/// measurements of all runs during training. An exception in a run stops all runs and is rethrown.
///
/// @throws gatefold::FileError before the first run if the folder cannot be written
inline std::vector<Json> compute(const Common& common, const std::vector<Run>& runs) {
  runs::check(runs);
  const std::filesystem::path folder = common.out / "runs";
  make_folder(folder);
  for (const char* written : {"runs/probe", "results.json", "results.csv", "log.jsonl", "page.html"})
    gatefold::io::Replacement probe(common.out / written);

  std::vector<runs::Stored> all(runs.size());
  std::vector<std::size_t> rest;
  const auto file = [&](const Run& run) { return folder / (run.name + ".json"); };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto found = common.fresh ? std::nullopt : runs::stored(file(runs[i]), runs[i].options);
    if (found) {
      all[i] = std::move(*found);
    } else {
      rest.push_back(i);
    }
  }
  if (rest.size() < runs.size()) {
    std::printf("%zu of %zu runs from before in %s (--fresh computes them anew)\n", runs.size() - rest.size(),
                runs.size(), folder.c_str());
    std::fflush(stdout);
  }

  std::stable_sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) { return runs[a].cost > runs[b].cost; });
  std::vector<double> costs;
  for (const std::size_t i : rest) costs.push_back(runs[i].cost);
  Bar bar(std::move(costs));
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    for (std::size_t j; !stop && (j = next++) < rest.size();) {
      const Run& run = runs[rest[j]];
      try {
        const Json result = run.compute([&, j](double share) {
          if (stop) throw runs::Stopped{};
          bar.update(j, share);
        });
        all[rest[j]] = runs::store(file(run), run.options, result);
        bar.finish(j);
      } catch (const runs::Stopped&) {
      } catch (...) {
        const std::lock_guard lock(failing);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
    }
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads =
      std::min(common.threads > 0 ? static_cast<std::size_t>(common.threads) : cores, rest.size());
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  std::string log;
  std::vector<Json> results;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    log += json_lines(runs[i], all[i].result, all[i].log);
    results.push_back(std::move(all[i].result));
  }
  write_file(common.out / "log.jsonl", log);
  return results;
}

}  // namespace studies
