#include "gatefold/distributed/checkpoint.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"
#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "support/system_calls.hpp"
#endif

using namespace gatefold;
using support::read_bytes;

namespace {

constexpr Index dim = 5, items = 20;
const Mixture mixture{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};

auto trainer_on(auto& shard, Cpu::Context& ctx) {
  return Trainer{ctx, Stack{Residual{update::HeavyBall{}, dist::ExpertParallel{mixture, &shard}}, 2},
                 dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::AdamW{.lr = 0.01}, &shard},
                 Seed{3}};
}
void step(auto& shard, auto& trainer) {
  const auto seed = static_cast<std::uint64_t>(trainer.state.step);
  const auto x = uniform_tensor<float>(trainer.context(), Seed{10 + seed}, 1, items, dim);
  const auto mine = shard.part_of(items);
  trainer.step(x.view().rows(mine.first, mine.count), x.view().rows(mine.first, mine.count));
}
void on_shards(Index shards, const auto& program) {
  dist::Alone world;
  dist::run(world, shards, program);
}

}  // namespace

TEST_CASE("AsyncCheckpoint: steps and moves during writing do not change files") {
  const support::TempDirectory folder;
  const auto path = [&](const char* kind, Index i) { return folder.path / (kind + std::to_string(i)); };
  on_shards(3, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx);
    dist::AsyncCheckpoint checkpoint(shard);
    CHECK(checkpoint.poll());
    checkpoint.wait();
    for (Index i = 0; i < 8; ++i) {
      const io::SaveOptions options{.max_file_bytes = i % 2 == 0 ? 0 : 500};
      dist::save_checkpoint(shard, path("sync", i), trainer, {}, options);
      checkpoint.save(path("async", i), trainer, {}, options);
      dist::move_experts(shard, trainer, {dist::Placement{{2, 1, 0, i % 3, 1, 1}}, {}});
      step(shard, trainer);
      if (i % 3 == 0)
        while (!checkpoint.poll()) step(shard, trainer);
      if (i % 3 == 0) CHECK(io::exists(path("async", i)));
    }
    checkpoint.wait();
    CHECK(io::exists(path("async", 7)));
    checkpoint.save(path("async", 8), trainer);  // the destructor waits
  });
  CHECK(io::exists(path("async", 8)));
  for (Index i = 0; i < 8; i += 2) {
    CHECK(read_bytes(path("async", i)) == read_bytes(path("sync", i)));
    CHECK(read_bytes(path("async", i)).size() > 1000);
    if (i > 0) CHECK(read_bytes(path("async", i)) != read_bytes(path("async", 0)));
  }
  on_shards(2, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto a = trainer_on(shard, ctx), b = trainer_on(shard, ctx);
    dist::load_checkpoint(shard, path("async", 7), a);
    dist::load_checkpoint(shard, path("sync", 7), b);
    dist::save_checkpoint(shard, folder.path / "a", a);
    dist::save_checkpoint(shard, folder.path / "b", b);
  });
  CHECK(read_bytes(folder.path / "a") == read_bytes(folder.path / "b"));
}

TEST_CASE("AsyncCheckpoint: a failed run leaves only complete files") {
  const support::TempDirectory folder;
  const auto program = [&](int way) {
    return [&, way](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::AsyncCheckpoint checkpoint(shard);
      checkpoint.save(folder.file(), trainer);
      if (way == 0 && shard.index() == 1) throw std::runtime_error("in between");
      if (way == 1 && shard.index() == 0) std::filesystem::create_directory(folder.file());  // stops the rename
      if (way == 2) checkpoint.save(folder.path / "none" / "file", trainer);
      checkpoint.wait();
    };
  };
  CHECK_THROWS_WITH_AS(on_shards(3, program(0)), "in between", std::runtime_error);
  CHECK(folder.entries() == 0);
  CHECK_THROWS_WITH_AS(on_shards(3, program(1)), (folder.file().string() + ": cannot replace: Is a directory").c_str(),
                       FileError);
  CHECK(folder.entries() == 1);
  std::filesystem::remove(folder.file());
  CHECK_THROWS_AS(on_shards(3, program(2)), FileError);
  CHECK(folder.entries() == 1);  // the first save was complete before the second began
}

TEST_CASE("AsyncCheckpoint: different wait orders throw and leave no files") {
  const support::TempDirectory folder;
  std::string said;
  try {
    on_shards(3, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::AsyncCheckpoint first(shard), second(shard);
      first.save(folder.path / "first", trainer);
      second.save(folder.path / "second", trainer);
      shard.index() == 1 ? second.wait() : first.wait();
    });
  } catch (const ArgumentError& e) {
    said = e.what();
  }
  CHECK(said ==
        "checkpoint: the save in progress: expected the same value on all shards, got a different one on shard 1 than "
        "on shard 0");
  CHECK(std::filesystem::is_empty(folder.path));
}

#if defined(__linux__)
namespace {

std::atomic<bool> disk_is_slow = false;
void stay(const support::SystemCall& call) {
  while (call.kind == support::SystemCall::sync && disk_is_slow) std::this_thread::yield();
}

}  // namespace

namespace {

std::atomic<bool> fails = false;  // makes the next sync of any thread fail
void fail_once(const support::SystemCall& call) {
  if (call.kind != support::SystemCall::sync || !fails.exchange(false)) return;
  const int other = ::open("/dev/null", O_RDONLY);  // a file that cannot be synced
  ::dup2(other, call.file);
  ::close(other);
}

}  // namespace

TEST_CASE("AsyncCheckpoint: write errors throw on all shards, training continues") {
  if (!support::hears_system_calls) return;  // the address sanitizer hides system calls from tests
  const support::TempDirectory folder;
  const std::string sentence = folder.file().string() + ": cannot write: Invalid argument";
  const auto run = [&](bool goes_wrong) {
    std::atomic<int> caught = 0;
    on_shards(3, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::AsyncCheckpoint checkpoint(shard);
      for (int way = 0; way < 3; ++way) {
        step(shard, trainer);
        if (!goes_wrong) continue;
        shard.barrier();
        fails = true;
        shard.barrier();
        try {
          checkpoint.save(folder.file(), trainer);
          if (way == 0) checkpoint.wait();
          while (way == 1 && !checkpoint.poll()) std::this_thread::yield();
          if (way == 2) checkpoint.save(folder.file(), trainer);
        } catch (const FileError& e) {
          caught += e.what() == sentence;
        }
        CHECK(checkpoint.poll());
        CHECK_THROWS_AS(checkpoint.save(folder.path / "none" / "file", trainer), FileError);
        CHECK(checkpoint.poll());
      }
      checkpoint.save(folder.path / (goes_wrong ? "on" : "expected"), trainer);
    });
    CHECK(caught == (goes_wrong ? 9 : 0));
  };
  run(false);
  support::on_system_call = fail_once;
  run(true);
  support::on_system_call = nullptr;
  CHECK(folder.entries() == 2);
  CHECK(read_bytes(folder.path / "on") == read_bytes(folder.path / "expected"));
}

TEST_CASE("AsyncCheckpoint: poll does not block while shards write") {
  const support::TempDirectory folder;
  support::on_system_call = stay;
  disk_is_slow = true;
  on_shards(3, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx);
    dist::AsyncCheckpoint checkpoint(shard);
    checkpoint.save(folder.file(), trainer);
    for (int i = 0; i < 3; ++i) {
      CHECK_FALSE(checkpoint.poll());
      step(shard, trainer);
    }
    shard.barrier();
    disk_is_slow = false;
    while (!checkpoint.poll()) step(shard, trainer);
    CHECK(io::exists(folder.file()));
    CHECK(checkpoint.poll());
  });
  support::on_system_call = nullptr;
}
#endif
