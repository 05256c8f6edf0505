#include "gatefold/distributed/all_reduce.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <vector>

#include "gatefold/distributed/sharded.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

struct Pack {
  Tensor<float, 2, Cpu> a;
  Tensor<double, 1, Cpu> b;
  Table<float, Cpu> rows;
  dist::Sharded<Linear::Params<float, Cpu>> expert;
  GATEFOLD_PACK(a, b, rows, expert)
};
constexpr Index words = 9, width = 3;

float value(Index shard, Index i) { return static_cast<float>((shard + 1) * 100 + i); }
/// Returns the rows that a shard touches. The last of several shards touches none; all others touch row 4.
std::vector<Index> touched(Index shard, Index shards) {
  if (shard + 1 == shards && shards > 1) return {};
  return {4, (shard * 3) % words};
}

Pack pack_of(Cpu::Context& ctx, Index shard, Index shards) {
  Pack p;
  p.a.resize(2, 5);
  p.b.resize(3);
  for (Index i = 0; i < p.a.size(); ++i) p.a.data()[i] = value(shard, i);
  for (Index i = 0; i < p.b.size(); ++i) p.b(i) = static_cast<double>(value(shard, i)) / 3;
  p.rows.resize(words, width);
  zero(ctx, p.rows);
  const auto rows = p.rows.rows();
  for (const Index v : touched(shard, shards)) {
    rows.marks[v] = 1;
    for (Index k = 0; k < width; ++k) rows.data[v * width + k] = value(shard, v);
  }
  p.expert.part.weight.resize(1, 2, 2);
  for (Index i = 0; i < 4; ++i) p.expert.part.weight.data()[i] = value(shard, i);
  return p;
}

}  // namespace

TEST_CASE("all_reduce: sums shared tensors and touched table rows, not experts") {
  for (Index shards : {1, 2, 3, 4}) {
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      Pack p = pack_of(ctx, shard.index(), shards);
      dist::all_reduce(shard, ctx, p);
      for (Index i = 0; i < p.a.size(); ++i) {
        float sum = 0;  // integers: exact in any order
        for (Index j = 0; j < shards; ++j) sum += value(j, i);
        if (p.a.data()[i] != sum) ++wrong;
      }
      for (Index i = 0; i < p.b.size(); ++i) {
        double sum = 0;
        for (Index j = 0; j < shards; ++j) sum += static_cast<double>(value(j, i)) / 3;
        if (!(std::abs(p.b(i) - sum) <= 1e-12)) ++wrong;
      }
      std::vector<float> expected(words, 0);
      std::vector<bool> marked(words, false);
      for (Index j = 0; j < shards; ++j) {
        std::vector<bool> once(words, false);
        for (const Index v : touched(j, shards)) {
          if (!once[static_cast<std::size_t>(v)]) expected[static_cast<std::size_t>(v)] += value(j, v);
          once[static_cast<std::size_t>(v)] = marked[static_cast<std::size_t>(v)] = true;
        }
      }
      if (std::as_const(p.rows).all_touched()) ++wrong;
      for (Index v = 0; v < words; ++v) {
        if (std::as_const(p.rows).rows().touched(v) != marked[static_cast<std::size_t>(v)]) ++wrong;
        for (Index k = 0; k < width; ++k)
          if (std::as_const(p.rows)(v, k) != expected[static_cast<std::size_t>(v)]) ++wrong;
      }
      for (Index i = 0; i < 4; ++i)
        if (p.expert.part.weight.data()[i] != value(shard.index(), i)) ++wrong;
    });
    CAPTURE(shards);
    CHECK(wrong == 0);
  }
}

TEST_CASE("all_reduce: sums whole tables if one shard touched all rows") {
  dist::Alone world;
  std::atomic<int> wrong = 0;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    Pack p = pack_of(ctx, shard.index(), 3);
    if (shard.index() == 2) fill(ctx, p.rows.view(), 1);
    dist::all_reduce(shard, ctx, p);
    if (!std::as_const(p.rows).all_touched()) ++wrong;
    if (std::as_const(p.rows)(8, 0) != 1) ++wrong;
    if (std::as_const(p.rows)(4, 0) != value(0, 4) + value(1, 4) + 1) ++wrong;
  });
  CHECK(wrong == 0);
}
