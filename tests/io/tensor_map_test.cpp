#include "gatefold/io/tensor_map.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/io/published_maps.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;
using io::MapEntry;
using io::TensorFiles;

namespace {

template <class T>
struct Bank {
  Tensor<T, 3, Cpu> weight{2, 2, 3};  // [E, D, O]
  Tensor<T, 2, Cpu> bias{2, 3};
  Tensor<T, 1, Cpu> rest{2}, none{0};
  Tensor<Index, 1, Cpu> count{1};

  GATEFOLD_PACK(weight, bias, rest, none, count)
};

struct Pair {
  Bank<float> a, b;
  GATEFOLD_PACK(a, b)
};

template <class T>
Bank<T> counted() {
  Bank<T> bank;
  for (Index i = 0; i < 12; ++i) bank.weight.data()[i] = T(1 + i);
  for (Index i = 0; i < 6; ++i) bank.bias.data()[i] = T(13 + i);
  bank.rest(0) = bank.rest(1) = -1;
  bank.count(0) = 7;
  return bank;
}

const io::TensorMap map{{"weight", "e.{}.w", MapEntry::transposed}, {"bias", "all.b"}, {"rest"}, {"count", "n"}};

}  // namespace

TEST_CASE("TensorMap: saves transposed tensors per expert; unmapped tensors stay") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const Bank<float> bank = counted<float>();
  io::save(temp.file(), ctx, {{"format", "pt"}}, map, bank);
  const TensorFiles files(temp.file());
  REQUIRE(files.tensors().size() == 4);
  CHECK(files.tensors()[0].name == "all.b");
  CHECK(files.info("e.0.w").shape == std::vector<std::uint64_t>{3, 2});
  CHECK(files.read<double>("e.0.w") == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(files.read<double>("e.1.w") == std::vector<double>{7, 10, 8, 11, 9, 12});
  CHECK(files.read<double>("all.b") == std::vector<double>{13, 14, 15, 16, 17, 18});
  CHECK(io::read_metadata(temp.file()) == io::Metadata{{"format", "pt"}});

  Bank<double> loaded;
  loaded.rest(0) = loaded.rest(1) = -5;
  io::load(files, ctx, map, loaded);
  Bank<double> by_path;
  by_path.rest(0) = by_path.rest(1) = -5;
  io::load(temp.file(), ctx, map, by_path);
  CHECK(values(by_path) == values(loaded));
  const Bank<double> expected = counted<double>();
  CHECK(values(loaded.weight) == values(expected.weight));
  CHECK(values(loaded.bias) == values(expected.bias));
  CHECK(values(loaded.rest) == std::vector<double>{-5, -5});
  CHECK(loaded.count(0) == 7);
}

TEST_CASE("TensorMap: saves floats in 16 bits, whole numbers unchanged") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  Bank<double> bank = counted<double>();
  bank.bias(0, 0) = 1 + 0x1p-9;
  for (const auto& [stored, dtype] : {std::pair{io::Stored::bf16, "BF16"}, {io::Stored::f16, "F16"}}) {
    io::save(temp.file(), ctx, {}, map, bank, stored);
    const TensorFiles files(temp.file());
    CHECK(files.info("e.1.w").dtype == dtype);
    CHECK(files.info("n").dtype == "I64");
    CHECK(files.read<float>("all.b")[0] == (stored == io::Stored::bf16 ? 1 : 1 + 0x1p-9f));
    CHECK(read_bytes(temp.file()).find("{\"n\"") == 8);  // after the length the whole number comes first
  }
}

TEST_CASE("TensorMap: save removes old parts and their index") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  Bank<float> before, now = counted<float>(), read;
  io::save(temp.file(), ctx, {}, io::SaveOptions{.max_file_bytes = 16}, io::Part{"", before});
  io::save(temp.file(), ctx, {}, map, now);
  CHECK(std::distance(std::filesystem::directory_iterator(temp.path), {}) == 1);
  io::load(temp.file(), ctx, map, read);
  CHECK(read.weight(1, 1, 2) == 12);
  CHECK_THROWS_WITH_AS(io::save(temp.path / "m.safetensors.index.json", ctx, {}, map, now),
                       ("io::save: path: expected the path of the tensors, not of their index (.json), got " +
                        (temp.path / "m.safetensors.index.json").string())
                           .c_str(),
                       ArgumentError);
}

TEST_CASE("fill: tensors larger than a block get the saved values") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  for (const bool interleaved : {false, true})
    for (const auto layout : {MapEntry::as_it_is, MapEntry::transposed}) {
      CAPTURE(interleaved);
      CAPTURE(layout);
      // A matrix of 300 x 500 floats has 600 kB, so a block holds one matrix; 600 x 500 exceeds a block.
      for (const Index depth : {300, 600}) {
        Pair pair, read;
        for (Bank<float>* bank : {&pair.a, &pair.b, &read.a, &read.b}) {
          bank->weight.resize(3, depth, 500);
          bank->bias.resize(270, 1000);
          set_zero(ctx, *bank);
        }
        Index next = 0;
        for_each_tensor(
            [&](const Name&, auto& t) {
              for (Index i = 0; i < t.size(); ++i) t.data()[i] = ++next % 65521;
            },
            pair);
        io::TensorMap of_pair;
        for (const Index part : {0, 1}) {
          const std::string at = part == 0 ? "a." : "b.";
          of_pair.push_back({at + "weight", "w", layout, part, 2, false, interleaved});
          of_pair.push_back({at + "bias", "b", layout, part, 2, false, interleaved});
          of_pair.push_back({at + "rest", at + "rest"});
          of_pair.push_back({at + "count", at + "count"});
        }
        io::save(temp.file(), ctx, {}, of_pair, pair);
        io::tensor_map::fill(TensorFiles(temp.file()), ctx, of_pair, read);
        CHECK(values(read) == values(pair));
      }
    }
}

TEST_CASE("TensorMap: wrong maps throw before anything is written") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const Bank<float> bank = counted<float>();
  io::save(temp.file(), ctx, {}, map, bank);
  const TensorFiles files(temp.file());
  const std::string path = temp.file().string();
  Bank<float> to;
  to.weight(0, 0, 0) = to.bias(0, 0) = -3;
  const auto changed = [&](auto change) {
    io::TensorMap other = map;
    change(other);
    std::string said;
    try {
      io::load(files, ctx, other, to);
    } catch (const std::exception& e) {
      said = e.what();
    }
    CHECK(to.weight(0, 0, 0) == -3);
    CHECK(to.bias(0, 0) == -3);
    return said;
  };
  CHECK(changed([](auto& m) { m.pop_back(); }) == "io::load: map: expected an entry for count, got none");
  CHECK(changed([](auto& m) {
          m.push_back({"wieght", "w"});
        }) == "io::load: map: expected tensors of the pack, each at most once, got wieght");
  CHECK(changed([](auto& m) {
          m.push_back({"bias", "w"});
        }) == "io::load: map: expected tensors of the pack, each at most once, got bias");
  CHECK(changed([](auto& m) { m[1].layout = MapEntry::as_it_is, m[1].theirs = "e.{}.b"; }) ==
        path + ": tensor \"e.0.b\": missing");
  CHECK(changed([](auto& m) { m[0].layout = MapEntry::as_it_is; }) ==
        path + ": tensor \"e.0.w\": expected [2, 3], got [3, 2]");
  CHECK(changed([](auto& m) { m[3].theirs = "all.b"; }) ==
        path + ": tensor \"all.b\": dtype: expected integers of at most 63 bits, got F32");
  CHECK(changed([](auto& m) { m[3].layout = MapEntry::transposed; }) ==
        "io::load: map: count: expected two extents to transpose, got [1]");
  const std::string before = read_bytes(temp.file());
  CHECK(message_of([&] {
          io::TensorMap twice = map;
          twice[1].theirs = "e.1.w";
          io::save(temp.file(), ctx, {}, twice, bank);
        }) == "io::save: tensor names: expected distinct names, got two of \"e.1.w\"");
  CHECK(message_of([&] {
          io::TensorMap reserved = map;
          reserved[3].theirs = "__metadata__";
          io::save(temp.file(), ctx, {}, reserved, bank);
        }) == "io::save: tensor name: expected any name except \"__metadata__\", got __metadata__");
  CHECK(read_bytes(temp.file()) == before);
}

namespace {

/// Returns a file whose tensor t has the elements 100·t + i.
std::string numbered(std::vector<GivenTensor<float>> tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : tensors[t].shape) count *= extent;
    for (std::uint64_t i = 0; i < count; ++i) tensors[t].elements.push_back(float(100 * t + i));
  }
  return safetensors_text(tensors);
}

constexpr Index E = 2, D = 3, H = 4;

struct Gated {
  Tensor<float, 3, Cpu> gate{E, D, H}, up{E, D, H}, down{E, H, D};
  Tensor<float, 2, Cpu> gate_bias{E, H}, up_bias{E, H};

  GATEFOLD_PACK(gate, up, down, gate_bias, up_bias)
};

/// Checks a pack that is read from a file of numbered elements. The elements must be gate_up(e, h, d), down(e, h, d)
/// and bias(e, h), where h is the output of gate if h < H, and H plus the output of up otherwise. Writing the pack
/// gives the tensors of the file again.
void check_fused(const std::string& text, const io::TensorMap& names, auto gate_up, auto down, auto bias) {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const TensorFiles files(temp.write(text, "fused.safetensors"));
  Gated pack;
  io::load(files, ctx, names, pack);
  for (Index e = 0; e < E; ++e)
    for (Index h = 0; h < H; ++h) {
      for (Index d = 0; d < D; ++d) {
        CHECK(pack.gate(e, d, h) == float(gate_up(e, h, d)));
        CHECK(pack.up(e, d, h) == float(gate_up(e, H + h, d)));
        CHECK(pack.down(e, h, d) == float(down(e, h, d)));
      }
      CHECK(pack.gate_bias(e, h) == float(bias(e, h)));
      CHECK(pack.up_bias(e, h) == float(bias(e, H + h)));
    }
  io::save(temp.file(), ctx, {}, names, pack);
  const TensorFiles back(temp.file());
  CHECK(back.tensors().size() == files.tensors().size());
  for (const auto& [name, dtype, shape] : back.tensors()) {
    CHECK(shape == files.info(name).shape);
    CHECK(back.read_bytes(name) == files.read_bytes(name));
  }
}

std::string what(auto&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

constexpr auto turned = MapEntry::transposed, straight = MapEntry::as_it_is;

}  // namespace

TEST_CASE("parts of a tensor: gate above up round-trips") {
  check_fused(
      numbered({{"gu", {E, 2 * H, D}, {}}, {"down", {E, D, H}, {}}, {"b", {E, 2 * H}, {}}}),
      {{"gate", "gu", turned, 0, 2},
       {"up", "gu", turned, 1, 2},
       {"down", "down", turned},
       {"gate_bias", "b", straight, 0, 2},
       {"up_bias", "b", straight, 1, 2}},
      [](Index e, Index h, Index d) { return (e * 2 * H + h) * D + d; },
      [](Index e, Index h, Index d) { return 100 + (e * D + d) * H + h; },
      [](Index e, Index h) { return 200 + e * 2 * H + h; });
}
TEST_CASE("parts of a tensor: gate left of up round-trips") {
  check_fused(
      numbered({{"gu", {E, D, 2 * H}, {}}, {"down", {E, H, D}, {}}, {"b", {E, 2 * H}, {}}}),
      {{"gate", "gu", straight, 0, 2},
       {"up", "gu", straight, 1, 2},
       {"down", "down"},
       {"gate_bias", "b", straight, 0, 2},
       {"up_bias", "b", straight, 1, 2}},
      [](Index e, Index h, Index d) { return (e * D + d) * 2 * H + h; },
      [](Index e, Index h, Index d) { return 100 + (e * H + h) * D + d; },
      [](Index e, Index h) { return 200 + e * 2 * H + h; });
}
TEST_CASE("TensorMap: reads fused gate and up matrices of each expert") {
  check_fused(
      numbered({{"0.gu", {2 * H, D}, {}},
                {"1.gu", {2 * H, D}, {}},
                {"down", {E, H, D}, {}},
                {"0.b", {2 * H}, {}},
                {"1.b", {2 * H}, {}}}),
      {{"gate", "{}.gu", turned, 0, 2},
       {"up", "{}.gu", turned, 1, 2},
       {"down", "down"},
       {"gate_bias", "{}.b", straight, 0, 2},
       {"up_bias", "{}.b", straight, 1, 2}},
      [](Index e, Index h, Index d) { return 100 * e + h * D + d; },
      [](Index e, Index h, Index d) { return 200 + (e * H + h) * D + d; },
      [](Index e, Index h) { return 300 + 100 * e + h; });
}

/// Returns where output h of gate (h < H) or up stands if their outputs alternate.
Index alternate(Index h) { return h < H ? 2 * h : 2 * (h - H) + 1; }

TEST_CASE("interleaved parts: columns of gate and up alternate") {
  check_fused(
      numbered({{"gu", {E, D, 2 * H}, {}}, {"down", {E, H, D}, {}}, {"b", {E, 2 * H}, {}}}),
      {{.ours = "gate", .theirs = "gu", .part = 0, .parts = 2, .interleaved = true},
       {.ours = "up", .theirs = "gu", .part = 1, .parts = 2, .interleaved = true},
       {"down", "down"},
       {.ours = "gate_bias", .theirs = "b", .part = 0, .parts = 2, .interleaved = true},
       {.ours = "up_bias", .theirs = "b", .part = 1, .parts = 2, .interleaved = true}},
      [](Index e, Index h, Index d) { return (e * D + d) * 2 * H + alternate(h); },
      [](Index e, Index h, Index d) { return 100 + (e * H + h) * D + d; },
      [](Index e, Index h) { return 200 + e * 2 * H + alternate(h); });
}
TEST_CASE("interleaved parts: rows of gate and up alternate if transposed") {
  check_fused(
      numbered({{"gu", {E, 2 * H, D}, {}}, {"down", {E, D, H}, {}}, {"b", {E, 2 * H}, {}}}),
      {{.ours = "gate", .theirs = "gu", .layout = turned, .part = 0, .parts = 2, .interleaved = true},
       {.ours = "up", .theirs = "gu", .layout = turned, .part = 1, .parts = 2, .interleaved = true},
       {"down", "down", turned},
       {.ours = "gate_bias", .theirs = "b", .part = 0, .parts = 2, .interleaved = true},
       {.ours = "up_bias", .theirs = "b", .part = 1, .parts = 2, .interleaved = true}},
      [](Index e, Index h, Index d) { return (e * 2 * H + alternate(h)) * D + d; },
      [](Index e, Index h, Index d) { return 100 + (e * D + d) * H + h; },
      [](Index e, Index h) { return 200 + e * 2 * H + alternate(h); });
}
TEST_CASE("interleaved parts: one tensor for each expert round-trips") {
  for (const auto layout : {straight, turned}) {
    const std::vector<std::uint64_t> shape =
        layout == turned ? std::vector<std::uint64_t>{2 * H, D} : std::vector<std::uint64_t>{D, 2 * H};
    check_fused(
        numbered({{"0.gu", shape, {}},
                  {"1.gu", shape, {}},
                  {"down", {E, H, D}, {}},
                  {"0.b", {2 * H}, {}},
                  {"1.b", {2 * H}, {}}}),
        {{.ours = "gate", .theirs = "{}.gu", .layout = layout, .part = 0, .parts = 2, .interleaved = true},
         {.ours = "up", .theirs = "{}.gu", .layout = layout, .part = 1, .parts = 2, .interleaved = true},
         {"down", "down"},
         {.ours = "gate_bias", .theirs = "{}.b", .part = 0, .parts = 2, .interleaved = true},
         {.ours = "up_bias", .theirs = "{}.b", .part = 1, .parts = 2, .interleaved = true}},
        [&](Index e, Index h, Index d) {
          return 100 * e + (layout == turned ? alternate(h) * D + d : d * 2 * H + alternate(h));
        },
        [](Index e, Index h, Index d) { return 200 + (e * H + h) * D + d; },
        [](Index e, Index h) { return 300 + 100 * e + alternate(h); });
  }
}

namespace {

/// Query, key and value that one tensor of the file holds.
struct Three {
  Tensor<double, 2, Cpu> q, k, v;
  GATEFOLD_PACK(q, k, v)
};

}  // namespace

TEST_CASE("interleaved parts: three parts of more than 1 MiB round-trip") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  constexpr Index rows = 700, columns = 313;  // 3 · rows · columns floats are 2.6 MB
  GivenTensor<float> all{"qkv", {rows, 3 * columns}, {}};
  for (Index i = 0; i < rows * 3 * columns; ++i) all.elements.push_back(float(i));
  const std::string text = safetensors_text<float>({all});
  const TensorFiles files(temp.write(text, "qkv.safetensors"));
  Three pack{Tensor<double, 2, Cpu>(rows, columns), Tensor<double, 2, Cpu>(rows, columns),
             Tensor<double, 2, Cpu>(rows, columns)};
  const auto part = [](std::string ours, Index number, bool interleaved) {
    return MapEntry{.ours = ours, .theirs = "qkv", .part = number, .parts = 3, .interleaved = interleaved};
  };
  for (const bool interleaved : {true, false}) {
    const io::TensorMap names{part("q", 0, interleaved), part("k", 1, interleaved), part("v", 2, interleaved)};
    io::load(files, ctx, names, pack);
    Index wrong = 0;
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c)
        for (Index p = 0; p < 3; ++p) {
          const auto& tensor = p == 0 ? pack.q : p == 1 ? pack.k : pack.v;
          wrong += tensor(r, c) != double(r * 3 * columns + (interleaved ? 3 * c + p : p * columns + c));
        }
    CHECK(wrong == 0);
    io::save(temp.file(), ctx, {}, names, pack, io::Stored::f32);
    CHECK(TensorFiles(temp.file()).read_bytes("qkv") == files.read_bytes("qkv"));
  }
}

TEST_CASE("interleaved parts: loads gate and up in gpt-oss layout") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, GatedMlp<Silu>{4, 5}};
  auto params = mixture.init<float, Cpu>(ctx, Seed{1});
  const auto path = temp.write(
      numbered({{"r.w", {3, 4}, {}}, {"r.b", {3}, {}}, {"gate_up", {3, 4, 10}, {}}, {"down", {3, 5, 4}, {}}}),
      "oss.safetensors");
  const io::TensorMap names{{"gate.scores.weight", "r.w", turned},
                            {"gate.scores.bias", "r.b"},
                            {.ours = "expert.gate", .theirs = "gate_up", .part = 0, .parts = 2, .interleaved = true},
                            {.ours = "expert.up", .theirs = "gate_up", .part = 1, .parts = 2, .interleaved = true},
                            {"expert.down", "down"}};
  io::load(path, ctx, names, params);
  for (Index h = 0; h < 5; ++h) {
    CHECK(params.expert.gate(0, 0, h) == float(200 + 2 * h));
    CHECK(params.expert.up(0, 0, h) == float(200 + 2 * h + 1));
  }
}

TEST_CASE("parts of a tensor: wrong maps throw before any write") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const auto path = temp.write(numbered({{"gu", {E, 2 * H, D}, {}}, {"down", {E, D, H}, {}}, {"b", {E, 2 * H}, {}}}),
                               "fused.safetensors");
  const TensorFiles files(path);
  const io::TensorMap names{{"gate", "gu", turned, 0, 2},
                            {"up", "gu", turned, 1, 2},
                            {"down", "down", turned},
                            {"gate_bias", "b", straight, 0, 2},
                            {"up_bias", "b", straight, 1, 2}};
  Gated pack;
  pack.gate(0, 0, 0) = -3;
  const auto loading = [&](auto change) {
    io::TensorMap other = names;
    change(other[1]);
    const std::string said = what([&] { io::load(files, ctx, other, pack); });
    CHECK(pack.gate(0, 0, 0) == -3);
    return said;
  };
  const std::string gate_up = path.string() + ": tensor \"gu\": expected ";
  CHECK(loading([](MapEntry& up) { up.layout = straight; }) == gate_up + "[2, 3, 8], got [2, 8, 3]");
  CHECK(loading([](MapEntry& up) { up.parts = 3; }) == gate_up + "[2, 12, 3], got [2, 8, 3]");
  CHECK(loading([](MapEntry& up) { up.part = 0, up.parts = 1; }) == gate_up + "[2, 4, 3], got [2, 8, 3]");
  const std::string no_part = "io::load: map: up: expected 0 <= part < parts, got part ";
  CHECK(loading([](MapEntry& up) { up.part = 2; }) == no_part + "2 of 2");
  CHECK(loading([](MapEntry& up) { up.part = -1; }) == no_part + "-1 of 2");
  CHECK(loading([](MapEntry& up) { up.part = up.parts = 0; }) == no_part + "0 of 0");
  CHECK(loading([](MapEntry& up) { up.part = 0, up.parts = 1, up.interleaved = true; }) ==
        "io::load: map: up: expected at least 2 parts, because interleaved is set, got 1");

  const auto saving = [&](std::size_t entry, auto change) {
    io::TensorMap other = names;
    change(other[entry]);
    const std::string said = what([&] { io::save(temp.file(), ctx, {}, other, pack); });
    CHECK_FALSE(std::filesystem::exists(temp.file()));
    return said;
  };
  CHECK(saving(1, [](MapEntry& up) { up.part = 0; }) ==
        "io::save: tensor names: expected distinct names, got two of \"gu\"");
  const std::string lacks =
      "io::save: map: expected all parts of \"gu\", with the same shape and element type, got part ";
  CHECK(saving(1, [](MapEntry& up) { up.theirs = ""; }) == lacks + "0 of 2");
  CHECK(saving(0, [](MapEntry& gate) { gate.theirs = ""; }) == lacks + "1 of 2");
  CHECK(saving(1, [](MapEntry& up) { up.layout = straight; }) == lacks + "1 of 2");
  CHECK(saving(1, [](MapEntry& up) { up.interleaved = true; }) == lacks + "1 of 2");
  CHECK(saving(1, [](MapEntry& up) { up.part = 2, up.parts = 4; }) == lacks + "2 of 4");
}

namespace {

struct OneWeight {
  Tensor<float, 3, Cpu> weight;
  GATEFOLD_PACK(weight)
};

}  // namespace

TEST_CASE("one_expert: a file without the expert extent loads and saves") {
  Cpu::Context ctx(1);
  const TempDirectory temp;
  const io::TensorMap map{{.ours = "weight", .theirs = "w", .layout = MapEntry::transposed, .one_expert = true}};
  OneWeight pack{Tensor<float, 3, Cpu>(1, 2, 3)};
  for (Index i = 0; i < 6; ++i) pack.weight.data()[i] = float(i);
  io::save(temp.file(), ctx, {}, map, pack);
  const TensorFiles files(temp.file());
  CHECK(files.info("w").shape == std::vector<std::uint64_t>{3, 2});
  CHECK(files.read<float>("w") == std::vector<float>{0, 3, 1, 4, 2, 5});
  OneWeight read{constant_tensor<float>(ctx, 0, 1, 2, 3)};
  io::load(files, ctx, map, read);
  for (Index i = 0; i < 6; ++i) CHECK(read.weight.data()[i] == float(i));

  OneWeight two{Tensor<float, 3, Cpu>(2, 2, 3)};
  CHECK_THROWS_WITH_AS(io::load(files, ctx, map, two),
                       "io::load: map: weight: expected 1 expert, because one_expert is set, got 2", ArgumentError);
}

TEST_CASE("TensorMap: a published block is written back byte for byte") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const std::filesystem::path path = std::filesystem::path(GATEFOLD_TEST_DIR) / "io/blocks/mixtral.safetensors";
  const Mixture block{SoftmaxTopK{.scores = {.experts = 4, .bias = false}}, GatedMlp<Silu>{16, 20}};
  auto params = block.init<float, Cpu>(ctx, Seed{1});
  const auto names = io::published::mixtral("model.layers.0.block_sparse_moe.");
  const TensorFiles from(path);
  io::load(from, ctx, names, params);
  io::save(temp.file(), ctx, {}, names, params, io::Stored::bf16);
  const TensorFiles back(temp.file());
  CHECK(back.tensors().size() == 13);
  for (const auto& [name, dtype, shape] : back.tensors()) {
    CHECK(dtype == from.info(name).dtype);
    CHECK(shape == from.info(name).shape);
    CHECK(back.read_bytes(name) == from.read_bytes(name));
  }
}

namespace {

struct Pack {
  Tensor<double, 3, Cpu> gate{1, 2, 3}, up{1, 2, 3};
  Tensor<Index, 1, Cpu> count{1};
  GATEFOLD_PACK(gate, up, count)
};

template <class T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

}  // namespace

TEST_CASE("gather: joins and converts parts in file order") {
  Cpu::Context ctx(1);
  Pack pack;
  for (Index i = 0; i < 6; ++i) {
    pack.gate.data()[i] = double(i);
    pack.up.data()[i] = double(10 + i);
  }
  pack.count(0) = 7;
  const auto elements = [&](MapEntry::Layout layout, bool interleaved) {
    const io::TensorMap parts{{"up", "gu", layout, 1, 2, false, interleaved},
                              {"gate", "gu", layout, 0, 2, false, interleaved},
                              {"count", "n"}};
    const auto tensors = io::tensor_map::gather<Cpu::Context>(parts, pack);
    REQUIRE(tensors.size() == 2);
    CHECK(tensors[0].name == "gu");
    CHECK(tensors[0].size() == 12);
    CHECK(tensors[0].dtype(io::Stored::as_they_are) == std::string("F64"));
    CHECK(tensors[0].dtype(io::Stored::bf16) == std::string("BF16"));
    CHECK(as<Index>(tensors[1].elements(ctx)) == std::vector<Index>{7});
    CHECK(as<float>(io::tensor_map::encoded(tensors[0], tensors[0].elements(ctx), "F32")).size() == 12);
    return as<double>(tensors[0].elements(ctx));
  };
  using Values = std::vector<double>;
  CHECK(elements(MapEntry::as_it_is, false) == Values{0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15});
  CHECK(elements(MapEntry::as_it_is, true) == Values{0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15});
  CHECK(elements(MapEntry::transposed, false) == Values{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15});
  CHECK(elements(MapEntry::transposed, true) == Values{0, 3, 10, 13, 1, 4, 11, 14, 2, 5, 12, 15});
}

TEST_CASE("gather: throws if a part of a tensor is missing") {
  Pack pack;
  CHECK_THROWS_WITH_AS(
      io::tensor_map::gather<Cpu::Context>({{"gate", "gu", MapEntry::as_it_is, 0, 2}, {"up"}, {"count"}}, pack),
      "io::save: map: expected all parts of \"gu\", with the same shape and element type, got part 0 of 2",
      ArgumentError);
}
