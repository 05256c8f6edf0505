#include "gatefold/distributed/nccl.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "support/late_memory.hpp"
#include "support/processes.hpp"

using namespace gatefold;
using support::Processes;

// NCCL's own communicator is tested in tests/backend/cuda/nccl_test.cu.
namespace {

/// Data that the ranks share.
struct Board {
  std::mutex mutex{};
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> messages{};
  std::atomic<int> left = 0, aborted = 0, delivered = 0;
  int silent = -1;  // a rank whose messages never arrive
  bool has_no_id = false;
};
Board* board = nullptr;  // the board of the test case

/// A communicator that keeps its messages on the board.
class OnBoard {
 public:
  struct Id {
    Board* of;
  };
  static Id make_id() {
    if (board->has_no_id) throw DeviceError("ncclGetUniqueId: no network");
    return {board};
  }
  OnBoard(const Id& id, int rank, int size) : board_(*id.of), rank_(rank), size_(size) {}
  void begin(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
    const std::lock_guard lock(board_.mutex);
    for (const auto& m : outgoing)
      if (rank_ != board_.silent) board_.messages[{rank_, m.rank}].emplace_back(m.data, m.data + m.bytes);
    waiting_.assign(incoming.begin(), incoming.end());
  }
  bool done() {
    if (board_.aborted > 0) throw DeviceError("another rank has given up");
    const std::lock_guard lock(board_.mutex);
    for (; !waiting_.empty(); waiting_.pop_front()) {
      auto& from = board_.messages[{waiting_.front().rank, rank_}];
      if (from.empty()) return false;
      REQUIRE(from.front().size() == waiting_.front().bytes);
      std::copy(from.front().begin(), from.front().end(), waiting_.front().data);
      from.pop_front();
      ++board_.delivered;
    }
    return true;
  }
  void finalize() { ++board_.left; }
  void destroy() {}
  void abort() { ++board_.aborted; }

 private:
  Board& board_;
  int rank_, size_;
  std::deque<dist::Incoming> waiting_{};
};
using World = dist::Nccl<Processes::World, OnBoard>;
static_assert(dist::DeviceWorld<World> && !dist::DeviceWorld<Processes::World>);

/// Runs f(world) on every process and returns the message of what each of them throws.
std::vector<std::string> failures(int processes, Board& of, const auto& f) {
  board = &of;
  Processes all(processes);
  std::vector<std::string> found(static_cast<std::size_t>(processes));
  all.run([&](auto& inner) {
    auto& mine = found[static_cast<std::size_t>(inner.rank())];
    try {
      World world{inner, {.timeout = 0.2}};
      try {
        f(world);
      } catch (const Error& error) {
        mine = error.what();
        world.fail(mine);
      }
    } catch (const Error& error) {
      mine = error.what();
    }
  });
  return found;
}

}  // namespace

TEST_CASE("Nccl: device messages use the communicator once it exists") {
  for (const int processes : {1, 2, 3}) {
    CAPTURE(processes);
    Board of;
    std::atomic<int> wrong = 0;
    const auto found = failures(processes, of, [&](auto& world) { wrong += test::wrong_of_late(world, 4); });
    CHECK(found == std::vector<std::string>(static_cast<std::size_t>(processes)));
    CHECK(wrong == 0);
    CHECK((of.delivered > 0) == (processes > 1));
    CHECK(of.left == (processes > 1 ? processes : 0));
    CHECK(of.aborted == 0);
  }
}

TEST_CASE("Nccl: different sizes throw before any data is sent") {
  Board of;
  const auto found = failures(2, of, [](auto& world) {
    std::vector<std::byte> bytes(24);
    const int other = 1 - world.rank();
    const dist::Outgoing out[] = {{other, bytes.data(), 8}, {other, bytes.data(), 4}};
    const dist::Incoming in[] = {{other, bytes.data(), 12}};
    if (world.rank() == 0) world.exchange_on_device(out, in);
    if (world.rank() == 1) world.exchange_on_device(std::span(out).first(1), in);
  });
  CHECK(found[0] ==
        "Nccl.exchange: rank 1 sends 1 messages of 8 bytes, but 1 messages of 12 bytes were expected: the ranks do not "
        "run the same program");
  CHECK(found[1] ==
        "Nccl.exchange: rank 0 sends 2 messages of 12 bytes, but 1 messages of 12 bytes were expected: the ranks do "
        "not run the same program");
  CHECK(of.delivered == 0);
}

TEST_CASE("Nccl: a missing message makes this and later exchanges throw") {
  Board of;
  of.silent = 1;
  const auto found = failures(2, of, [](auto& world) {
    std::vector<std::byte> give(4), take(4);
    const dist::Outgoing out[] = {{1 - world.rank(), give.data(), 4}};
    const dist::Incoming in[] = {{1 - world.rank(), take.data(), 4}};
    try {
      world.exchange_on_device(out, in);
    } catch (const DeviceError& error) {
      CHECK_THROWS_WITH_AS(world.exchange_on_device(out, in), error.what(), DeviceError);
      throw;
    }
  });
  CHECK(found[0] == "Nccl: NCCL has not delivered all messages within 0.2 s");
  CHECK(of.aborted > 0);
}

TEST_CASE("Nccl: a failure reaches all ranks, also during construction") {
  Board of;
  CHECK(failures(2, of, [](auto& world) {
          if (world.rank() == 1) throw DeviceError("out of paper");
          world.exchange_on_device({}, {});
        }) == std::vector<std::string>{"rank 1: out of paper", "out of paper"});
  Board without;
  without.has_no_id = true;
  CHECK(failures(2, without, [](auto&) {}) ==
        std::vector<std::string>{"ncclGetUniqueId: no network", "rank 0: ncclGetUniqueId: no network"});
}

TEST_CASE("Nccl: a timeout of 0 seconds or less throws") {
  Processes all(1);
  Processes::World inner{&all, 0};
  CHECK_THROWS_WITH_AS((World{inner, {.timeout = 0}}), "Nccl: timeout: expected more than 0 seconds, got 0",
                       ArgumentError);
}
