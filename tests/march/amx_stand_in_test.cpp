// Tests what tests/march/amx_stand_in.hpp refuses, as the unit does, and how gatefold/backend/cpu/amx.hpp uses it.

#include "amx_stand_in.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/forked.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using amx_stand_in::process;
using amx_stand_in::Unit;

namespace {

/// The memory that ldtilecfg reads.
struct Bytes {
  std::uint8_t c[64] = {1};
  Bytes() {
    for (int t = 0; t < 8; ++t) shape(t, 16, 64);
  }
  Bytes& shape(int t, int rows, int bytes) {
    c[16 + 2 * t] = static_cast<std::uint8_t>(bytes);
    c[48 + t] = static_cast<std::uint8_t>(rows);
    return *this;
  }
  Bytes& byte(int i, int value) {
    c[i] = static_cast<std::uint8_t>(value);
    return *this;
  }
};

/// Returns the message of what f() throws.
template <class F>
std::string fault(const F& f) {
  try {
    f();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "none";
}
bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

const bool refuses = std::getenv("AMX_STAND_IN_REFUSES");

/// Computes a product of one expert in tiles.
float product(CpuBf16::Context& ctx, Index rows, Index depth, Index columns) {
  const std::vector<float> a(static_cast<std::size_t>(rows * depth), 1.0f),
      w(static_cast<std::size_t>(depth * columns), 1.0f);
  const std::vector<Index> offsets{0, rows};
  Tensor<float, 2, CpuBf16> c(rows, columns);
  CpuBf16::grouped_gemm<float>(
      ctx, Groups<CpuBf16>{offsets, {}, rows}, View<const float, 2, CpuBf16>(a.data(), rows, depth),
      View<const float, 3, CpuBf16>(w.data(), Index(1), depth, columns), false, c.view(), functor::Store{});
  return c(rows - 1, columns - 1);
}

/// Computes two products of one expert, one after the other.
float pair(CpuBf16::Context& ctx, Index rows, Index depth) {
  const std::vector<float> a(static_cast<std::size_t>(rows * depth), 1.0f),
      w(static_cast<std::size_t>(depth * depth), 1.0f);
  const std::vector<Index> offsets{0, rows};
  const View<const float, 3, CpuBf16> weights(w.data(), Index(1), depth, depth);
  Tensor<float, 2, CpuBf16> c(rows, depth);
  CpuBf16::grouped_pair<float, 1>(ctx, Groups<CpuBf16>{offsets, {}, rows},
                                  View<const float, 2, CpuBf16>(a.data(), rows, depth), {weights}, functor::Store{},
                                  weights, c.view(), functor::Store{});
  return c(rows - 1, depth - 1);
}

}  // namespace

#if defined(__linux__)
TEST_CASE("grouped_pair: requests AMX permission if it is called first" * doctest::skip(refuses)) {
  CHECK(support::in_child([] {
          CpuBf16::Context ctx(1);
          return std::to_string(pair(ctx, 40, 8) == 64);
        }) == "1");
}
#endif

TEST_CASE("AMX unit: invalid configurations and unconfigured tiles fault" * doctest::skip(refuses)) {
  cpu::AmxTiles<Bfloat16>::permit();
  Unit unit;
  const auto loading = [&](const Bytes& bytes) { return fault([&] { unit.load_configuration(bytes.c); }); };
  std::vector<float> memory(256);
  CHECK(fault([&] { unit.zero(0); }) == "AMX: tilezero: no configuration");
  CHECK(fault([&] { unit.load(0, memory.data(), 64); }) == "AMX: tileloadd: no configuration");
  CHECK(fault([&] { unit.store(0, memory.data(), 64); }) == "AMX: tilestored: no configuration");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 6); }) == "AMX: tdpbf16ps: no configuration");
  CHECK(loading(Bytes().byte(0, 2)) == "AMX: ldtilecfg: palette");
  CHECK(starts(loading(Bytes().byte(7, 1)), "AMX: ldtilecfg: first row"));
  CHECK(loading(Bytes().shape(8, 16, 64)) == "AMX: ldtilecfg: a tile that is not there");
  CHECK(loading(Bytes().shape(3, 17, 64)) == "AMX: ldtilecfg: a tile that is too large");
  CHECK(loading(Bytes().shape(3, 16, 68)) == "AMX: ldtilecfg: a tile that is too large");
  CHECK(starts(loading(Bytes().shape(3, 0, 64)), "AMX: ldtilecfg: a tile of rows without columns"));
  CHECK(loading(Bytes().shape(1, 0, 0).shape(4, 5, 60)) == "none");
  CHECK(fault([&] { unit.zero(1); }) == "AMX: tilezero: a tile without a shape");
  CHECK(fault([&] { unit.zero(8); }) == "AMX: tilezero: a tile without a shape");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 6); }) == "AMX: tdpbf16ps: rows of a, and of c");
  CHECK(loading(Bytes().shape(4, 16, 60)) == "none");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 6); }) == "AMX: tdpbf16ps: words of a row of a, and rows of b");
  CHECK(loading(Bytes().shape(6, 16, 32)) == "none");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 6); }) == "AMX: tdpbf16ps: columns of b, and of c");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 4); }) == "AMX: tdpbf16ps: a tile twice");
  CHECK(loading(Bytes()) == "none");
  CHECK(fault([&] { unit.multiply_bfloat16(0, 4, 6); }) == "none");
  CHECK(loading(Bytes().byte(0, 0)) == "none");  // as tilerelease
  CHECK(fault([&] { unit.zero(0); }) == "AMX: tilezero: no configuration");
}

TEST_CASE("AmxTiles: gives tiles to its thread until its destructor" * doctest::skip(refuses)) {
  cpu::AmxTiles<Bfloat16>::permit();
  const auto usable = [] { return fault([] { _tile_zero(0); }) == "none"; };
  CHECK(!usable());
  {
    const cpu::AmxTiles<Bfloat16> tiles;
    CHECK(usable());
    bool elsewhere = true;
    std::thread([&] { elsewhere = usable(); }).join();
    CHECK(!elsewhere);
  }
  CHECK(!usable());
}

TEST_CASE("grouped_gemm: requests permission once, uses and releases tiles" * doctest::skip(refuses)) {
  for (const int threads : {1, 4}) {
    CpuBf16::Context ctx(threads, true);
    for (const Index rows : {1, 8, 16, 17, 33, 200})
      for (const Index depth : {1, 32, 257})
        for (const Index columns : {1, 16, 17, 32, 64}) {
          const long before = process.multiplied, configured = process.configured;
          CHECK(product(ctx, rows, depth, columns) == static_cast<float>(depth));
          const auto tiles = [](Index n, Index size) { return (n + size - 1) / size; };
          CHECK(process.multiplied - before == tiles(rows, 16) * tiles(columns, 16) * tiles(depth, 32));
          CHECK(process.configured > configured);
          CHECK(process.configured == process.released);
        }
  }
  CHECK(process.asked == 1);
  if (support::may_fork)
    CHECK(support::in_child([] {
            CpuBf16::Context ctx(2, true);
            return std::to_string(product(ctx, 70, 300, 40) == 300) + std::to_string(process.asked.load());
          }) == "11");
}

TEST_CASE("AmxBytes: restores the configuration of the thread" * doctest::skip(refuses)) {
  cpu::AmxTiles<Bfloat16>::permit();
  const auto usable = [](int t) { return fault([&] { amx_stand_in::unit.zero(t); }) == "none"; };
  for (const bool configured : {false, true}) {
    const long before = process.configured - process.released;
    const auto bytes = [&] {
      const cpu::AmxBytes unit(5);
      CHECK(usable(4));
      CHECK(!usable(5));
    };
    if (configured) {
      const cpu::AmxTiles<Bfloat16> tiles;
      bytes();
      CHECK(usable(5));
    } else {
      bytes();
      CHECK(!usable(4));
    }
    CHECK(process.configured - process.released == before);
  }
}

TEST_CASE("quantised products: AMX for many rows gives the same bits") {
  constexpr Index width = cpu::Tile<float>::columns, group = cpu::group_size, groups = 3, panels = 2, most = 40;
  const auto w = naive::random_vector<float>(panels * groups * group * width, 1);
  const auto x = naive::random_vector<float>(most * groups * group, 2);
  for (const Weights form : {Weights::int8, Weights::int4, Weights::mxfp4}) {
    const cpu::QuantisedFormat& format = *cpu::quantised_format<float>(form);
    std::vector<std::byte> b(static_cast<std::size_t>(panels * groups * format.group_bytes));
    for (Index g = 0; g < panels * groups; ++g)
      format.encode(w.data() + g * group * width, b.data() + g * format.group_bytes);
    std::vector<cpu::QuantisedRow> rows(static_cast<std::size_t>(most));
    format.pack_rows({x.data(), groups * group, true}, 0, most, 0, groups * group, rows.data());
    const auto product = [&](Index first, Index count) {
      std::vector<float> sums(static_cast<std::size_t>(panels * most * width));
      format.multiply(count, groups, panels, rows.data() + first, b.data(), sums.data() + first * width, width,
                      most * width, cpu::Into::store);
      return sums;
    };
    std::vector<float> expected(static_cast<std::size_t>(panels * most * width));
    for (Index i = 0; i < most; ++i) {
      const auto row = product(i, 1);
      for (std::size_t j = 0; j < row.size(); ++j) expected[j] += row[j];
    }
    for (Index count = 1; count <= most; ++count) {
      const long before = process.multiplied_bytes;
      const auto sums = product(0, count);
      int wrong = 0;
      for (Index p = 0; p < panels; ++p)
        for (Index j = 0; j < count * width; ++j) {
          const auto at = static_cast<std::size_t>(p * most * width + j);
          wrong += sums[at] != expected[at];
        }
      CHECK(wrong == 0);
      const Index tiles = count / 16 + (count % 16 > 7);
      CHECK(process.multiplied_bytes - before == (refuses ? 0 : tiles * groups * panels * (width / 16)));
    }
  }
}

TEST_CASE("grouped_gemm: quantised weights use AMX on any number of threads" * doctest::skip(refuses)) {
  constexpr Index rows = 90, depth = 300, columns = 70;
  const auto a = naive::random_vector<float>(rows * depth, 3), w = naive::random_vector<float>(3 * depth * columns, 4);
  const View<const float, 3, Cpu> weights(w.data(), Index(3), depth, columns);
  const std::vector<Index> offsets{0, 41, 45, rows};
  for (const Weights form : {Weights::int8, Weights::int4, Weights::mxfp4}) {
    const auto product = [&](int threads) {
      Cpu::Context ctx(threads, true);
      cpu::PackedWeights packed;
      Cpu::pack(ctx, weights, form, packed);
      const auto use = ctx.use(packed);
      const long before = process.multiplied_bytes;
      Tensor<float, 2, Cpu> c(rows, columns);
      Cpu::grouped_gemm<float>(ctx, Groups<Cpu>{offsets, {}, rows}, View<const float, 2, Cpu>(a.data(), rows, depth),
                               weights, false, c.view(), functor::Store{});
      CHECK(process.multiplied_bytes > before);
      return c;
    };
    const auto alone = product(1), by_three = product(3);
    CHECK(std::equal(alone.data(), alone.data() + alone.size(), by_three.data()));
  }
  CHECK(process.configured == process.released);
}

TEST_CASE("grouped_gemm: without permission bfloat16 throws, float works" * doctest::skip(!refuses)) {
  CHECK(fault([] { const cpu::AmxTiles<Bfloat16> tiles; }) == "AMX: ldtilecfg: not permitted");
  CpuBf16::Context ctx(1);
  for (const bool twice : {false, true, false}) {
    std::string said;
    try {
      twice ? pair(ctx, 3, 4) : product(ctx, 3, 4, 5);
    } catch (const DeviceError& error) {
      said = error.what();
    }
    CHECK(starts(said, "CpuBf16: arch_prctl(ARCH_REQ_XCOMP_PERM): this file was compiled for the matrix unit (AMX)"));
  }
  CHECK(process.asked == 1);
  CHECK(process.multiplied == 0);
  const std::vector<double> a(6, 2), b(6, 3);
  Tensor<double, 2, CpuBf16> c(2, 2);
  CpuBf16::gemm<double>(ctx, View<const double, 2, CpuBf16>(a.data(), 2, 3), false,
                        View<const double, 2, CpuBf16>(b.data(), 3, 2), false, false, c.view(), functor::Store{});
  CHECK(c(1, 1) == 18);
}
