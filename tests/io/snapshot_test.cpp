#include "gatefold/io/snapshot.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"

using namespace gatefold;
namespace files = io::safetensors;

TEST_CASE("Snapshot: copies the elements and reuses its memory") {
  Cpu::Context ctx(1);
  Tensor<float, 1, Cpu> a(3);
  Tensor<double, 1, Cpu> b(2), none;
  for (Index i = 0; i < 3; ++i) a(i) = static_cast<float>(i);
  b(0) = 5;
  b(1) = 6;
  std::vector<files::Source> sources;
  const files::AddSource<Cpu::Context> add{sources};
  const AnyTensor any_a(a), any_none(none), any_b(b);
  for (const AnyTensor* t : {&any_a, &any_none, &any_b}) add(Name{}, t);
  files::Snapshot snapshot;
  snapshot.take(&ctx, sources);
  const void* memory = snapshot.sources()[0].data;
  for (int turn = 0; turn < 2; ++turn) {
    a(1) = 9;
    b(1) = 9;
    const auto& kept = snapshot.sources();
    REQUIRE(kept.size() == 3);
    CHECK(kept[1].size == 0);
    float x[2];
    kept[0].to_host(nullptr, kept[0].data, 1, 2, reinterpret_cast<std::byte*>(x));
    CHECK(x[0] == (turn == 0 ? 1 : 9));
    CHECK(x[1] == 2);
    double y[1];
    kept[2].to_host(nullptr, kept[2].data, 1, 1, reinterpret_cast<std::byte*>(y));
    CHECK(y[0] == (turn == 0 ? 6 : 9));
    CHECK(kept[0].data == memory);
    snapshot.take(&ctx, sources);
  }
}
