#pragma once

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <gatefold/gatefold.hpp>
#include <memory>
#include <string>

#include "threads.hpp"
#include "timing.hpp"

/// Measures the machine's peak arithmetic speed and bandwidth. Each benchmark measures them in the same process as its
/// results.
namespace bench {

using gatefold::Index;

namespace machine {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef std::uint64_t Words __attribute__((vector_size(kVectorBytes)));

/// Number of independent multiply-adds. It is larger than the latency times the multiply-adds per cycle of any current
/// core, and small enough for 16 registers.
inline constexpr int kChains = 12;

/// Does `steps` multiply-adds on each of kChains registers. The start value is read through a volatile, because a
/// compiler merges chains if it can prove that they are equal.
[[gnu::noinline]] inline float multiply_add(Index steps) {
  volatile float start = 1;
  Floats chain[kChains];
  for (Floats& v : chain) v = Floats{} + start;
  const Floats factor = Floats{} + start * 0.9999f, term = Floats{} + start * 1e-4f;
  for (Index i = 0; i < steps; ++i)
    for (Floats& v : chain) v = v * factor + term;
  Floats sum{};
  for (const Floats& v : chain) sum += v;
  return sum[0];
}

/// Adds up the vectors [data, data + count), without the last count % 8, and returns the first word of the sum. Reads
/// from eight places in turn, because prefetching stops at the end of a page. Tried: one place; it reaches two thirds
/// of the bandwidth.
[[gnu::noinline]] inline std::uint64_t sum_words(const Words* data, Index count) {
  constexpr Index kPlaces = 8;
  const Index length = count / kPlaces;
  Words sums[kPlaces] = {};
  for (Index i = 0; i < length; ++i)
    for (Index p = 0; p < kPlaces; ++p) sums[p] += data[p * length + i];
  for (Index p = 1; p < kPlaces; ++p) sums[0] += sums[p];
  return sums[0][0];
}

/// Returns the size of the largest cache of a core in bytes. Tried: sysconf; on an AMD processor, glibc 2.36 returns
/// the sum of the third-level caches of all cores, which was ten times as much.
inline std::size_t last_level_cache() {
  int bytes = 1 << 20;
  for (const auto& cache : benchmark::CPUInfo::Get().caches) bytes = std::max(bytes, cache.size);
  return static_cast<std::size_t>(bytes);
}

/// Returns the size of the main memory of this machine in bytes.
inline double memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace machine

/// Returns the peak floating-point operations per second of `threads` threads that compute in registers only. Takes the
/// best of three tries of about a millisecond, because a try can be interrupted.
inline double fma_peak(int threads) {
  constexpr Index kSteps = 200000;
  constexpr double kFlopPerStep = 2.0 * machine::kChains * machine::kVectorBytes / static_cast<double>(sizeof(float));
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double begin = now();
    gatefold::cpu::parallel_for(workers(), threads, threads,
                                [](Index, int) { benchmark::DoNotOptimize(machine::multiply_add(kSteps)); });
    best = std::max(best, static_cast<double>(kSteps) * kFlopPerStep * threads / (now() - begin));
  }
  return best;
}

/// Measures the bytes per second that `threads` threads can read from an array in memory or in a cache. The array has
/// huge pages, like packed weights; with pages of 4 KiB, reading is up to a tenth slower.
class ReadBandwidth {
 public:
  /// @param bytes  size of the array; 0: at least four times the last-level cache
  explicit ReadBandwidth(std::size_t bytes = 0)
      : count_(static_cast<Index>((bytes ? bytes : std::max(std::size_t(256) << 20, 4 * machine::last_level_cache())) /
                                  sizeof(machine::Words))),
        data_(static_cast<machine::Words*>(gatefold::cpu::allocate(bytes_of_array()))) {
    std::fill_n(data_.get(), count_, machine::Words{} + 1);
  }

  double operator()(int threads, double duration = 2e-3) const {
    const Index count = count_, parts = threads, passes = passes_for(duration);
    const double begin = now();
    gatefold::cpu::parallel_for(workers(), threads, parts, [&](Index part, int) {
      const Index first = count * part / parts, last = count * (part + 1) / parts;
      for (Index pass = 0; pass < passes; ++pass)
        benchmark::DoNotOptimize(machine::sum_words(data_.get() + first, last - first));
    });
    return static_cast<double>(passes * count) * sizeof(machine::Words) / (now() - begin);
  }

 private:
  Index passes_for(double duration) const {
    return std::max(Index(1), static_cast<Index>(duration * 20e9 / static_cast<double>(bytes_of_array())));
  }
  std::size_t bytes_of_array() const { return static_cast<std::size_t>(count_) * sizeof(machine::Words); }

  struct Release {
    void operator()(machine::Words* p) const { gatefold::cpu::release(p); }
  };
  Index count_;
  std::unique_ptr<machine::Words[], Release> data_;
};

inline std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

/// Writes the processor, its threads and the compiler into the benchmark's JSON output.
inline const bool described = [] {
  benchmark::AddCustomContext("processor", processor_name());
  benchmark::AddCustomContext("threads", std::to_string(gatefold::cpu::available_threads()));
  benchmark::AddCustomContext("vector_bytes", std::to_string(machine::kVectorBytes));
  benchmark::AddCustomContext("last_level_cache", std::to_string(machine::last_level_cache()));
  benchmark::AddCustomContext("compiler",
#if defined(__clang__)
                              "clang " __clang_version__
#else
                              "g++ " __VERSION__
#endif
  );
  return true;
}();

}  // namespace bench
