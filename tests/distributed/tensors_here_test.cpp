#include "gatefold/distributed/tensors_here.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;
using Here = dist::TensorsHere<Cpu::Context>;

namespace {

const Mixture mixture{SoftmaxTopK{.scores = {.experts = 5}}, Mlp<Gelu>{.model_dim = 3, .hidden_dim = 4}};
const dist::Placement placement{{2, 0, 2, 2, 0}};

void on_shards(Index shards, const auto& program) {
  dist::Alone world;
  dist::run(world, shards, program);
}

}  // namespace

TEST_CASE("TensorsHere: parts of all shards cover each byte once") {
  Cpu::Context one(1);
  const auto whole = init_params<float, Cpu>(mixture, one, Seed{6});
  std::map<std::string, std::vector<float>> expected;
  for_each_tensor([&](const Name& at, const auto& t) { expected[at.str()] = {t.data(), t.data() + t.size()}; }, whole);
  for (const bool placed : {false, true}) {
    std::map<std::string, std::vector<float>> found;
    std::map<std::string, std::vector<int>> times;
    std::mutex mutex;
    on_shards(3, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto params = init_params<float, Cpu>(
          dist::ExpertParallel{mixture, &shard, placed ? placement : dist::Placement{}}, ctx, Seed{6});
      const Here here(shard, "test", params, Here::Takes::part);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < here.list.size(); ++i) {
        const auto& entry = here.list[i];
        auto& values = found[entry.name];
        values.resize(entry.bytes / sizeof(float));
        times[entry.name].resize(values.size());
        Index from = 0;
        for (const auto& slice : entry.here) {
          const auto begin = slice.begin / sizeof(float), count = slice.count / sizeof(float);
          REQUIRE(begin + count <= values.size());
          here.sources[i].to_host(&ctx, here.sources[i].data, from, static_cast<Index>(count),
                                  reinterpret_cast<std::byte*>(values.data() + begin));
          for (std::size_t k = begin; k < begin + count; ++k) ++times[entry.name][k];
          from += static_cast<Index>(count);
        }
        CHECK(here.sources[i].size == from);
      }
    });
    CHECK(found == expected);
    for (const auto& [name, of] : times)
      for (const int n : of) CHECK(n == 1);
  }
}

TEST_CASE("TensorsHere: a reading shard lists its experts and shared tensors") {
  on_shards(3, [](auto& shard) {
    Cpu::Context ctx(1);
    auto params = init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard, placement}, ctx, Seed{6});
    const Here here(shard, "test", params, Here::Takes::all);
    std::map<std::string, std::uint64_t> bytes;
    for (const auto& entry : here.list)
      for (const auto& slice : entry.here) bytes[entry.name] += slice.count;
    const std::uint64_t experts[] = {2, 0, 3};
    CHECK(bytes["gate.scores.weight"] == 3 * 5 * 4);
    CHECK(bytes["expert.up"] == experts[shard.index()] * 3 * 4 * 4);
    // Neighbouring experts form one slice: shard 2 has expert 0, and 2 and 3 together.
    for (const auto& entry : here.list)
      if (entry.name == "expert.up" && shard.index() == 2) {
        REQUIRE(entry.here.size() == 2);
        CHECK(entry.here[1].begin == 2 * 48);
        CHECK(entry.here[1].count == 2 * 48);
      }
  });
}

TEST_CASE("TensorsHere: wrong numbers of rows throw on all shards") {
  const auto said = [](const auto& change) {
    try {
      on_shards(3, [&](auto& shard) {
        Cpu::Context ctx(1);
        auto params = init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard, placement}, ctx, Seed{6});
        change(shard.index(), params);
        Here(shard, "save_checkpoint", params, Here::Takes::part);
      });
    } catch (const ArgumentError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(said([](Index, auto&) {}) == "");
  CHECK(said([](Index shard, auto& params) {
          if (shard == 1) params.expert.part.down.resize(4, 4, 3);
        }) == "save_checkpoint: expert.down: expected 0 experts on shard 1, got 4");
}
