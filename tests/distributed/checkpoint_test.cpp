#include "gatefold/distributed/checkpoint.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "support/system_calls.hpp"
#endif

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/replicate.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

constexpr Index dim = 5, items = 20;

// Experts of two kinds, a gate that adapts without gradients, and an optimizer with moments.
const Mixture mixture{
    SigmoidTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
    Experts<Mlp<Gelu>, Linear>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}, Linear{.model_dim = dim}},
                               .counts = {4, 2}}};
auto model_of(const auto& branch) { return Stack{Residual{update::HeavyBall{}, branch}, 2}; }

auto trainer_on(auto& shard, Cpu::Context& ctx, const dist::Placement& placement = {}) {
  return Trainer{ctx, model_of(dist::ExpertParallel{mixture, &shard, placement}),
                 dist::LossOfShards{MeanSquaredError{}, &shard},
                 dist::DataParallel{optim::Clipped{optim::AdamW{.lr = 0.01}, 0.05}, &shard}, Seed{3}};
}
void step(auto& shard, auto& trainer) {
  const auto mine = shard.part_of(items);
  const auto seed = static_cast<std::uint64_t>(trainer.state.step);
  const auto x = uniform_tensor<float>(trainer.context(), Seed{10 + seed}, 1, items, dim);
  const auto y = uniform_tensor<float>(trainer.context(), Seed{90 + seed}, 1, items, dim);
  trainer.step(x.view().rows(mine.first, mine.count), y.view().rows(mine.first, mine.count));
}
/// Runs some steps on shards, beginning from a file if there is one, and saves to a file.
void run_on(Index shards, const std::filesystem::path& from, int steps, const std::filesystem::path& to,
            const dist::Placement& placement = {}, const io::SaveOptions& options = {}) {
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx, placement);
    if (!from.empty()) {
      const io::Metadata kept = dist::load_checkpoint(shard, from, trainer);
      CHECK(kept.at("note") == "kept");
    }
    for (int i = 0; i < steps; ++i) step(shard, trainer);
    dist::save_checkpoint(shard, to, trainer, {{"note", "kept"}}, options);
  });
}
std::map<std::string, std::string> contents(const support::TempDirectory& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    found[entry.path().filename().string()] = support::read_bytes(entry.path());
  return found;
}

struct Plain {
  Cpu::Context ctx{1};
  decltype(Trainer{ctx, model_of(mixture), MeanSquaredError{}, optim::AdamW{}, Seed{3}}) trainer{
      ctx, model_of(mixture), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{3}};
};

}  // namespace

TEST_CASE("checkpoint: initial file does not depend on the shard count") {
  const support::TempDirectory folder;
  Plain plain;
  save_checkpoint(folder.path / "plain", plain.trainer, {{"note", "kept"}});
  const std::string expected = support::read_bytes(folder.path / "plain");
  for (Index shards : {1, 2, 4, 7}) {  // of seven shards, one has no expert
    CAPTURE(shards);
    run_on(shards, {}, 0, folder.file());
    CHECK(support::read_bytes(folder.file()) == expected);
  }
}

TEST_CASE("checkpoint in parts: the number of shards changes no file") {
  const support::TempDirectory one;
  Plain plain;
  const io::SaveOptions options{.max_file_bytes = 700};
  save_checkpoint(one.path / "run.safetensors", plain.trainer, {{"note", "kept"}}, options);
  const auto expected = contents(one);
  CHECK(expected.size() > 3);
  for (Index shards : {1, 2, 4, 7}) {
    CAPTURE(shards);
    const support::TempDirectory folder;
    run_on(shards, {}, 0, folder.path / "run.safetensors", dist::Placement{{0, shards - 1, 0, 0, shards / 2, 0}},
           options);
    CHECK(contents(folder) == expected);
    run_on(shards, folder.path / "run.safetensors", 0, folder.path / "run.safetensors", {}, options);
    CHECK(contents(folder) == expected);
  }
}

TEST_CASE("checkpoint: changing the number of shards changes no bits") {
  const support::TempDirectory folder;
  const auto path = [&](const char* name) { return folder.path / name; };
  const io::SaveOptions parts{.max_file_bytes = 500};
  run_on(4, {}, 3, path("4"), dist::Placement{{3, 1, 1, 0, 2, 3}}, parts);
  run_on(3, path("4"), 0, path("3"), dist::Placement{{2, 2, 0, 0, 0, 2}});
  run_on(1, path("3"), 0, path("1"), {}, parts);
  Plain plain;
  load_checkpoint(path("1"), plain.trainer);
  CHECK(plain.trainer.state.step == 3);
  save_checkpoint(path("plain"), plain.trainer, {{"note", "kept"}});
  CHECK(support::read_bytes(path("plain")) == support::read_bytes(path("3")));
  // Two runs that begin from equal files take equal steps with different placements of the experts.
  run_on(3, path("3"), 2, path("3.on"));
  run_on(3, path("plain"), 2, path("plain.on"), dist::Placement{{2, 2, 0, 0, 0, 2}});
  CHECK(support::read_bytes(path("3.on")) == support::read_bytes(path("plain.on")));
}

TEST_CASE("checkpoint: loads on one process or any number of shards") {
  const support::TempDirectory folder;
  run_on(3, {}, 4, folder.path / "trained");
  const std::string trained = support::read_bytes(folder.path / "trained");
  for (Index shards : {1, 2, 3, 5}) {
    CAPTURE(shards);
    run_on(shards, folder.path / "trained", 0, folder.file());
    CHECK(support::read_bytes(folder.file()) == trained);
  }
  Plain plain;
  CHECK(load_checkpoint(folder.path / "trained", plain.trainer).at("note") == "kept");
  CHECK(plain.trainer.state.step == 4);
  save_checkpoint(folder.file(), plain.trainer, {{"note", "kept"}});
  CHECK(support::read_bytes(folder.file()) == trained);
}

TEST_CASE("checkpoint: an interrupted run continues with the same bits") {
  const support::TempDirectory folder;
  run_on(3, {}, 5, folder.path / "whole");
  run_on(3, {}, 2, folder.path / "begun");
  run_on(3, folder.path / "begun", 3, folder.path / "ended");
  CHECK(support::read_bytes(folder.path / "ended") == support::read_bytes(folder.path / "whole"));
}

TEST_CASE("checkpoint: placement of experts changes neither results nor file") {
  const support::TempDirectory folder;
  run_on(3, {}, 4, folder.path / "even");
  const std::string expected = support::read_bytes(folder.path / "even");
  for (const dist::Placement& placement : {dist::Placement{{2, 0, 1, 0, 1, 2}}, dist::Placement{{1, 1, 1, 1, 1, 1}},
                                           dist::Placement{{0, 0, 2, 2, 2, 0}}}) {
    CAPTURE(placement.shard_of);
    run_on(3, {}, 4, folder.path / "placed", placement);
    CHECK(support::read_bytes(folder.path / "placed") == expected);
    run_on(3, folder.path / "even", 0, folder.file(), placement);
    CHECK(support::read_bytes(folder.file()) == expected);
  }
}

TEST_CASE("checkpoint: replicated experts throw and write no file") {
  const support::TempDirectory folder;
  dist::Alone world;
  const auto refused = [&](bool reads) {
    dist::run(world, 2, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx, model_of(dist::ExpertParallel{mixture, &shard}),
                      dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{}, &shard},
                      Seed{3}};
      if (reads) dist::save_checkpoint(shard, folder.file(), trainer);
      const dist::Placement copied{{0, 0, 0, 1, 1, 1}, {{5, 0}}};
      dist::replicate_experts(shard, ctx, trainer.params, {copied, copied});
      if (reads)
        dist::load_checkpoint(shard, folder.file(), trainer);
      else
        dist::save_checkpoint(shard, folder.file(), trainer);
    });
  };
  const std::string none =
      ": placement.copies: expected 0 copies, because experts with copies (dist::replicate) can only be used for "
      "inference, got 1";
  CHECK_THROWS_WITH_AS(refused(false), ("save_checkpoint" + none).c_str(), ArgumentError);
  CHECK(contents(folder).empty());
  CHECK_THROWS_WITH_AS(refused(true), ("load_checkpoint" + none).c_str(), ArgumentError);
}

TEST_CASE("checkpoint: file errors throw on all shards, no file remains") {
  const support::TempDirectory folder;
  CHECK_THROWS_AS(run_on(3, folder.path / "none", 0, folder.file()), FileError);
  folder.write("no checkpoint");
  CHECK_THROWS_AS(run_on(3, folder.file(), 0, folder.path / "other"), FileError);
  CHECK_THROWS_AS(run_on(3, {}, 0, folder.path / "no folder" / "file"), FileError);
  CHECK(folder.entries() == 1);
}

TEST_CASE("checkpoint: throws for a part of another step") {
  const support::TempDirectory one, two;
  const io::SaveOptions options{.max_file_bytes = 700};
  run_on(3, {}, 1, one.path / "run", {}, options);
  run_on(3, {}, 2, two.path / "run", {}, options);
  const auto part_of = [](const support::TempDirectory& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path))
      if (entry.path().string().find("-00003-of-") != std::string::npos) return entry.path();
    return std::filesystem::path();
  };
  const auto part = part_of(one);
  std::filesystem::copy_file(part_of(two), part, std::filesystem::copy_options::overwrite_existing);
  const auto refused = [&](const auto& load) {
    std::string said;
    try {
      load();
    } catch (const FileError& e) {
      said = e.what();
    }
    CHECK(said.find(part.string() + ": a part of another save: ") == 0);
  };
  refused([&] { run_on(3, one.path / "run", 0, one.path / "on"); });
  refused([&] {
    Plain plain;
    load_checkpoint(one.path / "run", plain.trainer);
  });
  CHECK_FALSE(io::exists(one.path / "on"));
  run_on(3, two.path / "run", 0, two.path / "on");
}

TEST_CASE("checkpoint: a read error on one shard changes no shard") {
  const support::TempDirectory folder;
  run_on(3, {}, 1, folder.path / "1");
  run_on(3, {}, 2, folder.path / "2");
  folder.write("no checkpoint", "text");
  run_on(2, {}, 1, folder.path / "parts", {}, {.max_file_bytes = 700});
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    if (entry.path().string().find("-00002-of-") != std::string::npos) std::filesystem::resize_file(entry.path(), 9);
  for (const char* bad : {"none", "text", "parts"}) {
    CAPTURE(bad);
    std::string alone;
    try {
      Plain plain;
      load_checkpoint(folder.path / bad, plain.trainer);
    } catch (const FileError& e) {
      alone = e.what();
    }
    CHECK(alone.find((folder.path / bad).string()) == 0);
    std::atomic<int> caught = 0;
    dist::Alone world;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::load_checkpoint(shard, folder.path / "1", trainer);
      try {
        dist::load_checkpoint(shard, folder.path / (shard.index() == 1 ? bad : "2"), trainer);
      } catch (const FileError& e) {
        caught += e.what() == alone;
      }
      step(shard, trainer);
      dist::save_checkpoint(shard, folder.path / "on", trainer, {{"note", "kept"}});
    });
    CHECK(caught == 3);
    CHECK(support::read_bytes(folder.path / "on") == support::read_bytes(folder.path / "2"));
  }
}

TEST_CASE("checkpoint: a path may contain a line feed") {
  const support::TempDirectory folder;
  run_on(1, {}, 1, folder.path / "one");
  run_on(3, {}, 0, folder.path / "two\nlines");
  run_on(1, {}, 0, folder.path / "one");
  CHECK(support::read_bytes(folder.path / "two\nlines") == support::read_bytes(folder.path / "one"));
}

TEST_CASE("checkpoint: throws if shards read different files") {
  const support::TempDirectory folder;
  run_on(2, {}, 1, folder.path / "0");
  run_on(2, {}, 2, folder.path / "1");
  dist::Alone world;
  std::string said;
  try {
    dist::run(world, 2, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::load_checkpoint(shard, folder.path / std::to_string(shard.index()), trainer);
    });
  } catch (const ArgumentError& e) {
    said = e.what();
  }
  CHECK(said.starts_with("load_checkpoint: "));
  CHECK(said.find("expected the same value on all shards") != std::string::npos);
}

TEST_CASE("checkpoint: reading different files throws without shared parameters") {
  const support::TempDirectory folder;
  const Mixture hashed{HashGate{.count = 6}, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};
  const auto on = [&](Index shards, const auto& program) {
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx, dist::ExpertParallel{hashed, &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{optim::AdamW{}, &shard}, Seed{3}};
      program(shard, trainer);
    });
  };
  const auto save = [&](const char* name, Index step, const char* text) {
    on(2, [&](auto& shard, auto& trainer) {
      trainer.state.step = step;
      dist::save_checkpoint(shard, folder.path / name, trainer, {{"text", text}});
    });
  };
  save("one", 1, "a");
  save("two", 2, "a");
  save("other", 1, "b");
  const auto refused = [&](const char* name, const char* differs) {
    std::atomic<int> caught = 0;
    on(3, [&](auto& shard, auto& trainer) {
      trainer.state.step = 7;
      try {
        dist::load_checkpoint(shard, folder.path / (shard.index() == 1 ? name : "one"), trainer);
      } catch (const ArgumentError& e) {
        caught +=
            e.what() == std::string("load_checkpoint: ") + differs +
                            ": expected the same value on all shards, got a different one on shard 1 than on shard 0";
      }
      caught += trainer.state.step == 7;
      CHECK(dist::load_checkpoint(shard, folder.path / "one", trainer) == io::Metadata{{"text", "a"}});
    });
    CHECK(caught == 6);
  };
  refused("two", "optimizer.step");
  refused("other", "metadata");
}

TEST_CASE("checkpoint: shards read only their experts and exchange no tensors") {
  const support::TempDirectory folder;
  const Mixture large{SoftmaxTopK{.scores = {.experts = 8}}, Mlp<Gelu>{.model_dim = 16, .hidden_dim = 500}};
  dist::Alone world;
  dist::run(world, 4, [&](auto& shard) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, dist::ExpertParallel{large, &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optim::AdamW{}, &shard}, Seed{3}};
    dist::save_checkpoint(shard, folder.file(), trainer);
    dist::load_checkpoint(shard, folder.file(), trainer);
    // The weights of an expert have 16·500·2 parameters and twice as many moments. The shards may exchange only short
    // messages, for example hashes of the shared tensors and numbers of experts.
    CHECK(shard.traffic().given < 16 * 1024);
  });
  CHECK(support::read_bytes(folder.file()).size() > 8 * 16000 * 3 * sizeof(float));
}

#if defined(__linux__)
TEST_CASE("checkpoint: a full disk throws and keeps the earlier files") {
  const support::TempDirectory folder;
  run_on(3, {}, 0, folder.file());
  const auto before = contents(folder);
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old;
  limit.rlim_cur = 1000;
  for (const Index most : {0, 900}) {
    std::string said;
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      run_on(3, {}, 1, folder.file(), {}, {.max_file_bytes = most});
    } catch (const FileError& e) {
      said = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(said == folder.file().string() + ": cannot write: File too large");
    CHECK(contents(folder) == before);
  }
  std::signal(SIGXFSZ, handler);
}

namespace {

thread_local bool of_this_shard = false;
void for_this_shard(const support::SystemCall& call, support::SystemCall::Kind kind, const auto& f) {
  if (call.kind == kind && std::exchange(of_this_shard, false)) f();
}
void lose_what_is_begun(const support::SystemCall& call) {
  for_this_shard(call, support::SystemCall::write_at, [&] {
    std::filesystem::remove(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(call.file)));
  });
}
void fail_to_sync(const support::SystemCall& call) {
  for_this_shard(call, support::SystemCall::sync, [&] {
    const int other = ::open("/dev/null", O_RDONLY);  // a file that cannot be synced
    ::dup2(other, call.file);
    ::close(other);
  });
}
void fail_to_rename(const support::SystemCall& call) {
  for_this_shard(call, support::SystemCall::rename, [&] { std::filesystem::create_directory(call.to); });
}

}  // namespace

TEST_CASE("checkpoint: after a failed save all shards continue training") {
  const support::TempDirectory once;
  run_on(3, {}, 3, once.file());
  const std::string expected = support::read_bytes(once.file());
  struct Way {
    Index shard;  // the shard that fails
    void (*hook)(const support::SystemCall&);
    const char *path, *sentence;
    io::Metadata metadata{};
  };
  const Way ways[] = {
      {0, nullptr, "none/file", "none/file: cannot create "},
      {0, lose_what_is_begun, "file",
       "file: another process has created a file that this process cannot see: a checkpoint needs a file system that "
       "all processes share"},
      {0, fail_to_sync, "file", "file: cannot write: Invalid argument"},
      {2, fail_to_sync, "file", "file: cannot write: Invalid argument"},
      {0, fail_to_rename, "file", "file: cannot replace: Is a directory"},
      {1,
       nullptr,
       "file",
       "metadata: expected names that do not begin with \"gatefold.\", got gatefold.x",
       {{"gatefold.x", ""}}},
  };
  for (const Way& way : ways) {
    if (way.hook && !support::hears_system_calls) continue;  // the address sanitizer hides system calls from tests
    CAPTURE(way.sentence);
    const support::TempDirectory folder;
    const std::filesystem::path path = folder.path / way.path;
    std::vector<std::string> said(3);
    std::atomic<int> left = 0;
    dist::Alone world;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      for (int i = 0; i < 3; ++i) {
        step(shard, trainer);
        if (i != 1) continue;
        of_this_shard = shard.index() == way.shard;
        support::on_system_call = way.hook;
        shard.barrier();
        try {
          dist::save_checkpoint(shard, path, trainer, of_this_shard ? way.metadata : io::Metadata{});
        } catch (const Error& e) {
          said[static_cast<std::size_t>(shard.index())] = e.what();
        }
        shard.barrier();
        support::on_system_call = nullptr;
        if (shard.index() > 0) continue;
        if (way.hook == fail_to_rename) std::filesystem::remove(path);
        left = static_cast<int>(folder.entries());
      }
      dist::save_checkpoint(shard, folder.path / "on", trainer, {{"note", "kept"}});
    });
    CHECK(said[0].find(way.sentence) != std::string::npos);
    CHECK(said == std::vector<std::string>(3, said[0]));
    CHECK(left == 0);
    CHECK(support::read_bytes(folder.path / "on") == expected);
  }
}
#endif
