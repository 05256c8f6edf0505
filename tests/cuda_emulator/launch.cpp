#include "cuda_emulator/launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <random>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the numbers of blocks in the order in which they begin. A permutation moves blocks only within a window,
/// because devices begin blocks roughly in order, and algorithms that look back at earlier blocks depend on that.
std::vector<std::uint64_t> order_of_blocks(std::uint64_t blocks, const Options& options) {
  constexpr std::uint64_t window = 256;
  const std::uint64_t first = options.last_blocks == 0 ? 0 : blocks - std::min(blocks, options.last_blocks);
  std::vector<std::uint64_t> order(blocks - first);
  std::iota(order.begin(), order.end(), first);
  if (options.block_order != 0) {
    std::mt19937_64 random(options.block_order);
    for (std::uint64_t begin = 0; begin < order.size(); begin += window) {
      const std::uint64_t end = std::min<std::uint64_t>(begin + window, order.size());
      std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(begin), order.begin() + static_cast<std::ptrdiff_t>(end),
                   random);
    }
  }
  return order;
}

/// The largest number of blocks that may be set aside at the same time because they wait for other blocks.
constexpr std::size_t most_waiting = 512;

void run_blocks(Grid& grid, const std::vector<std::uint64_t>& order) {
  std::deque<std::unique_ptr<Block>> waiting;
  std::vector<std::unique_ptr<Block>> idle;
  auto run = [&](std::unique_ptr<Block> block) {
    const bool ended = block->run();
    if (ended) {
      idle.push_back(std::move(block));
    } else {
      waiting.push_back(std::move(block));
    }
  };
  auto run_oldest = [&] {
    std::unique_ptr<Block> oldest = std::move(waiting.front());
    waiting.pop_front();
    run(std::move(oldest));
  };
  for (const std::uint64_t number : order) {
    while (waiting.size() >= most_waiting) run_oldest();
    if (idle.empty()) idle.push_back(std::make_unique<Block>(grid));
    std::unique_ptr<Block> block = std::move(idle.back());
    idle.pop_back();
    block->start(number);
    run(std::move(block));
  }
  while (!waiting.empty()) run_oldest();
}

}  // namespace

Options& options() {
  static Options instance = [] {
    Options initial;
    initial.races = environment("GATEFOLD_EMULATOR_RACES", 1) != 0;
    initial.block_order = environment("GATEFOLD_EMULATOR_BLOCK_ORDER", 0);
    initial.compute_capability = static_cast<int>(environment("GATEFOLD_EMULATOR_CC", 80));
    return initial;
  }();
  return instance;
}

Counters& counters() {
  static Counters instance;
  return instance;
}

std::map<std::string, Counters>& counters_by_kernel() {
  static std::map<std::string, Counters> instance;
  return instance;
}

void launch(const Function& kernel, const Launch& launch) {
  if (launch.parameters.size() < kernel.parameters_bytes) {
    throw Fault("launch of " + demangled(kernel.name) + ": expected " + std::to_string(kernel.parameters_bytes) +
                " bytes of parameters, got " + std::to_string(launch.parameters.size()));
  }
  static Timeline timeline;
  constexpr std::uint32_t many_segments = 1u << 31;
  if (timeline.next() > many_segments) {
    timeline.restart();
    Memory::device().clear_cells();
  }
  timeline.begin_launch();
  Counters tally;
  tally.launches = 1;
  struct Add {  // counts even if the launch ends with a fault
    const Counters& tally;
    Counters& kernel;
    ~Add() {
      for (Counters* total : {&counters(), &kernel}) {
        total->launches += tally.launches;
        total->blocks += tally.blocks;
        total->instructions += tally.instructions;
        total->global_bytes_loaded += tally.global_bytes_loaded;
        total->global_bytes_stored += tally.global_bytes_stored;
      }
    }
  } add{tally, counters_by_kernel()[demangled(kernel.name)]};
  Grid grid{kernel, launch, timeline, tally, options().races, launch.parameters};
  run_blocks(grid, order_of_blocks(launch.grid.volume(), options()));
}

}  // namespace gatefold::cuda_emulator
