#include "gatefold/io/safetensors.hpp"

#include <doctest/doctest.h>

#if defined(__unix__)
#include <sys/resource.h>

#include <csignal>
#endif

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/pack.hpp"
#include "support/temp_directory.hpp"

using gatefold::ArgumentError;
using gatefold::Cpu;
using gatefold::FileError;
using gatefold::Index;
using gatefold::Tensor;
namespace io = gatefold::io;
using gatefold::support::read_bytes;
using gatefold::support::TempDirectory;

namespace {

std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}
std::string with_length(const std::string& json) { return little(json.size(), 8) + json; }

struct Linear {
  Tensor<float, 2, Cpu> weight;
  Tensor<double, 1, Cpu> bias;

  GATEFOLD_PACK(weight, bias)
};
struct Model {
  std::vector<Linear> layers;
  std::tuple<Tensor<Index, 1, Cpu>, Tensor<float, 4, Cpu>> rest;
  Tensor<double, 3, Cpu> empty;
  gatefold::Nothing<float, Cpu> nothing;

  GATEFOLD_PACK(layers, rest, empty, nothing)
};

Model make_model() {
  Model m;
  m.layers.resize(2);
  for (Linear& layer : m.layers) {
    layer.weight.resize(3, 5);  // an odd number of floats, so the next tensor is not aligned to 8 bytes in the file
    layer.bias.resize(2);
  }
  std::get<0>(m.rest).resize(3);
  std::get<1>(m.rest).resize(1, 2, 1, 3);
  m.empty.resize(4, 0, 2);
  return m;
}

template <class P>
void fill_random(P& pack, unsigned seed) {
  std::mt19937_64 random(seed);
  gatefold::for_each_tensor(
      [&]<class T, int Rank>(const gatefold::Name&, Tensor<T, Rank, Cpu>& t) {
        for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(static_cast<Index>(random()));
      },
      pack);
}

/// All bits of a pack.
template <class P>
std::string bits(const P& pack) {
  std::string all;
  gatefold::for_each_tensor(
      [&]<class T, int Rank>(const gatefold::Name&, const Tensor<T, Rank, Cpu>& t) {
        if (t.size() > 0)
          all.append(reinterpret_cast<const char*>(t.data()), static_cast<std::size_t>(t.size()) * sizeof(T));
      },
      pack);
  return all;
}

/// Two tensors, for files written by hand: a is F32 [2, 1] and b is I64 [1].
struct Pair {
  Tensor<float, 2, Cpu> a{2, 1};
  Tensor<Index, 1, Cpu> b{1};

  GATEFOLD_PACK(a, b)
};
Pair make_pair() {
  Pair pair;
  pair.a(0, 0) = 1;
  pair.a(1, 0) = -2;
  pair.b(0) = 258;
  return pair;
}
const std::string kPairData{"\x00\x00\x80\x3f\x00\x00\x00\xc0\x02\x01\x00\x00\x00\x00\x00\x00", 16};
const std::string kPairA = R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]})";
const std::string kPairB = R"("b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]})";
// The form in which io::save writes the pair: wide elements first.
const std::string kWrittenA = R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]})";
const std::string kWrittenB = R"("b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]})";

/// Returns what loading the file into a Pair throws, and checks that the Pair has not changed.
std::string load_message(const std::filesystem::path& path) {
  Cpu::Context ctx;
  Pair pair = make_pair();
  const std::string before = bits(pair);
  std::string message = "nothing was thrown";
  try {
    io::load(path, ctx, io::Part{"", pair});
  } catch (const FileError& e) {
    message = e.what();
    CHECK(bits(pair) == before);
  }
  return message;
}
void check_message(const std::string& message, const std::filesystem::path& path, const std::string& rest) {
  CHECK_MESSAGE(message.starts_with(path.string() + ": "), message);
  CHECK_MESSAGE(message.find(rest) != std::string::npos, message, " lacks ", rest);
}
template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("save, load: nested packs, several parts and metadata round-trip") {
  TempDirectory temp;
  Cpu::Context ctx;
  Model params = make_model(), moments = make_model();
  fill_random(params, 1);
  fill_random(moments, 2);
  params.layers[0].bias(0) = std::numeric_limits<double>::quiet_NaN();
  Tensor<Index, 1, Cpu> step(1);
  step(0) = Index(1) << 62;
  const io::Metadata metadata{{"version", "1"}, {"käse \"\\\n", "\u2200\x01"}, {"", ""}};
  io::save(temp.file(), ctx, metadata, io::Part{"params", std::as_const(params)}, io::Part{"", moments},
           io::Part{std::string("step"), step});

  Model params2 = make_model(), moments2 = make_model();
  Tensor<Index, 1, Cpu> step2(1);
  // The caller chooses the order of the parts.
  const io::Metadata read =
      io::load(temp.file(), ctx, io::Part{"step", step2}, io::Part{"params", params2}, io::Part{"", moments2});
  CHECK(read == metadata);
  CHECK(io::read_metadata(temp.file()) == metadata);
  CHECK(bits(params2) == bits(params));
  CHECK(bits(moments2) == bits(moments));
  CHECK(step2(0) == step(0));
  CHECK(temp.entries() == 1);
  const std::string bytes = read_bytes(temp.file());
  CHECK(bytes.find(R"("params.layers.1.weight":{"dtype":"F32","shape":[3,5],)") != std::string::npos);
  CHECK(bytes.find(R"("rest.0":{"dtype":"I64","shape":[3],)") != std::string::npos);
}

TEST_CASE("load_subset: reads only the requested tensors") {
  TempDirectory temp;
  Cpu::Context ctx;
  Model params = make_model(), moments = make_model(), params2 = make_model(), untouched = make_model();
  fill_random(params, 1);
  fill_random(moments, 2);
  io::save(temp.file(), ctx, {{"a", "b"}}, io::Part{"params", params}, io::Part{"moments", moments});
  CHECK(io::load_subset(temp.file(), ctx, io::Part{"params", params2}) == io::Metadata{{"a", "b"}});
  CHECK(bits(params2) == bits(params));
  io::load_subset(temp.file(), ctx, io::Part{"moments.layers.0", params2.layers[0]});
  CHECK(bits(params2.layers[0]) == bits(moments.layers[0]));
  CHECK(bits(params2.layers[1]) == bits(params.layers[1]));
  const auto before = bits(untouched);
  CHECK_THROWS_WITH_AS(io::load_subset(temp.file(), ctx, io::Part{"parameters", untouched}),
                       doctest::Contains("tensor \"parameters."), FileError);
  CHECK_THROWS_WITH_AS(io::load(temp.file(), ctx, io::Part{"params", untouched}), doctest::Contains("unexpected"),
                       FileError);
  CHECK(bits(untouched) == before);
  const auto names = io::read_names(temp.file());
  std::set<std::string> expected;
  for (const char* part : {"params.", "moments."})
    gatefold::for_each_tensor([&](const gatefold::Name& name, const auto&) { expected.insert(part + name.str()); },
                              params);
  CHECK(names == expected);
}

TEST_CASE("save, load: a tensor longer than one copy block round-trips") {
  TempDirectory temp;
  Cpu::Context ctx;
  Tensor<double, 1, Cpu> a((1 << 20) + 3), b((1 << 20) + 3);
  fill_random(a, 3);
  io::save(temp.file(), ctx, {}, io::Part{"x", a});
  io::load(temp.file(), ctx, io::Part{"x", b});
  CHECK(bits(a) == bits(b));
}

// Preset `test` runs this file too, because it links with --icf=all. Types of elements must stay different even if the
// linker merges equal functions.
TEST_CASE("save, load: the file has the expected bytes") {
  TempDirectory temp;
  Cpu::Context ctx;
  const Pair pair = make_pair();
  std::string json = R"({"__metadata__":{"k":"v"},)" + kWrittenB + "," + kWrittenA + "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  io::save(temp.file(), ctx, {{"k", "v"}}, io::Part{"", pair});
  CHECK(read_bytes(temp.file()) == with_length(json) + kPairData.substr(8) + kPairData.substr(0, 8));

  // Without metadata, over an existing file.
  json = "{" + kWrittenB + "," + kWrittenA + "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  io::save(temp.file(), ctx, {}, io::Part{"", pair});
  CHECK(read_bytes(temp.file()) == with_length(json) + kPairData.substr(8) + kPairData.substr(0, 8));
  CHECK(io::read_metadata(temp.file()).empty());

  const gatefold::Nothing<float, Cpu> nothing;
  io::save(temp.file(), ctx, {}, io::Part{"", nothing});
  CHECK(read_bytes(temp.file()) == with_length("{}      "));
}

TEST_CASE("load: reads files of other writers") {
  TempDirectory temp;
  Cpu::Context ctx;
  Pair pair;
  const std::string b = R"("b":{"data_offsets":[0,8],"shape":[1],"dtype":"I64"})";
  const std::string a = R"("a":{"dtype" : "F32", "shape":[2,1],"data_offsets":[8,16]})";
  io::load(temp.write(with_length("{" + a + " ,\n" + b + "}") + kPairData.substr(8) + kPairData.substr(0, 8)), ctx,
           io::Part{"", pair});
  CHECK(bits(pair) == bits(make_pair()));
  const auto foreign = temp.write(
      with_length(R"({"__metadata__":{"k":"v"},"x":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})") + "  ");
  CHECK(io::read_metadata(foreign) == io::Metadata{{"k", "v"}});
}

TEST_CASE("load: wrong headers throw") {
  TempDirectory temp;
  auto message = [&](const std::string& json, const std::string& data = kPairData) {
    return load_message(temp.write(with_length(json) + data));
  };
  auto check = [&](const std::string& json, const std::string& rest) {
    check_message(message(json), temp.file(), rest);
  };
  const std::string f32 = R"("dtype":"F32",)", two = R"("shape":[2,1],)", data = R"("data_offsets":[0,8])";
  REQUIRE(message("{" + kPairA + "," + kPairB + "}") == "nothing was thrown");

  check("", "offset 8: header: expected '{'");
  check("[]", "offset 8: header: expected '{'");
  check(" {}", "offset 8: header: expected '{'");
  check("{", "offset 9: header: not JSON");
  check("{} x", "offset 11: header: not JSON");
  check("{\"\xff\":0}", "header: not JSON");
  check(R"({"a":1e999})", "header: not JSON");
  check(std::string("{\0}", 3), "header: not JSON");
  check(R"({"a":[[[[0]]]]})", R"(tensor "a": expected an object)");
  check(R"({"a":)" + std::string(1'000'000, '['), "offset 8: header: nested too deeply");
  check("{" + kPairA + "," + kPairA + "," + kPairB + "}", R"(header: "a" appears twice)");
  check(R"({"a":{"dtype":"F32","dtype":"F32",)" + two + data + "}," + kPairB + "}", R"(header: "dtype" appears twice)");

  check(R"({"__metadata__":[],)" + kPairA + "," + kPairB + "}", "__metadata__: expected an object");
  check(R"({"__metadata__":{"k":1},)" + kPairA + "," + kPairB + "}", R"(__metadata__: "k": expected a string)");

  CHECK(message("{" + kPairA + "}", kPairData.substr(0, 8)) == temp.file().string() + R"(: tensor "b": missing)");
  check("{" + kPairA + "}", "expected the end of the file, found more bytes");
  check("{" + kPairA + "," + kPairB + R"(,"c":{}})", R"(tensor "c": unexpected)");
  check(R"({"\u001b[31m":{}})", R"(tensor "\u001b[31m": unexpected)");
  check(R"({"a":3,)" + kPairB + "}", R"(tensor "a": expected an object)");
  check(R"({"a":{)" + two + data + "}," + kPairB + "}", R"(tensor "a": no dtype)");
  check(R"({"a":{"dtype":"I32",)" + two + data + "}," + kPairB + "}", R"(tensor "a": dtype: expected F32, got "I32")");
  check(R"({"a":{"dtype":"F64",)" + two + data + "}," + kPairB + "}",
        R"(tensor "a": data_offsets: expected 16 bytes, got [0, 8])");
  check(R"({"a":{"dtype":"f32",)" + two + data + "}," + kPairB + "}",
        R"(tensor "a": dtype: expected a type of the format, got "f32")");
  check(R"({"a":{)" + f32 + data + "}," + kPairB + "}", R"(tensor "a": no shape)");
  for (const char* shape :
       {"2", "{}", "[-2,-1]", "[2.0,1]", "[\"2\",1]", "[1e2,1]", "[null]", "[99999999999999999999]"}) {
    check(R"({"a":{)" + f32 + R"("shape":)" + shape + "," + data + "}," + kPairB + "}",
          R"(tensor "a": shape: expected an array of non-negative integers)");
  }
  check(R"({"a":{)" + f32 + R"("shape":[1,2],)" + data + "}," + kPairB + "}",
        R"(tensor "a": expected [2, 1], got [1, 2])");
  check(R"({"a":{"dtype":"F64","shape":[],)" + data + "}," + kPairB + "}",
        R"(tensor "a": dtype: expected F32, got "F64")");
  check(R"({"a":{)" + f32 + R"("shape":[2],)" + data + "}," + kPairB + "}", R"(tensor "a": expected [2, 1], got [2])");
  check(R"({"a":{)" + f32 + R"("shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],)" + data + "}," + kPairB + "}",
        R"(tensor "a": expected [2, 1], got 17 dimensions)");
  check(R"({"a":{)" + f32 + R"("shape":[18446744073709551615,2],)" + data + "}," + kPairB + "}",
        "shape: expected less than 2^64 bits, got [18446744073709551615, 2]");
  check(R"({"a":{)" + f32 + two + R"("x":0},)" + kPairB + "}", R"(tensor "a": no data_offsets)");

  auto at = [&](const std::string& offsets) {
    return R"({"a":{)" + f32 + two + R"("data_offsets":)" + offsets + "}," + kPairB + "}";
  };
  check(at("[0,4]"), R"(tensor "a": data_offsets: expected 8 bytes, got [0, 4])");
  check(at("[8,0]"), "data_offsets: expected begin <= end, got [8, 0]");
  check(at("[18446744073709551612,4]"), "data_offsets: expected begin <= end, got [18446744073709551612, 4]");
  check(at("[8]"), "data_offsets: expected 8 bytes, got 1 numbers");
  check(at("[-8,0]"), "data_offsets: expected an array of non-negative integers");
  check(at("[4,12]"), R"(tensor "a": data_offsets: expected to begin at 0, got 4 (gap))");
  check(at("[8,16]"), "expected to begin at 0, got 8 (gap)");
  check(at("[16,24]"), "expected to begin at 0, got 8 (gap)");
  check(at("[18446744073709551607,18446744073709551615]"), "(gap)");
  check("{" + kPairA + R"(,"b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})",
        R"(tensor "b": data_offsets: expected to begin at 8, got 4 (overlap))");
  check("{" + kPairA + R"(,"b":{"dtype":"I64","shape":[1],"data_offsets":[9,17]}})",
        "expected to begin at 8, got 9 (gap)");

  const std::string good = "{" + kPairA + "," + kPairB + "}";
  check_message(message(good, kPairData + "x"), temp.file(),
                "offset " + std::to_string(8 + good.size() + 16) + ": expected the end of the file");
  check_message(message(good, kPairData.substr(1)), temp.file(), R"(truncated: tensor "b": ends at)");
}

TEST_CASE("load: hostile header lengths throw") {
  TempDirectory temp;
  for (const std::uint64_t length : {~std::uint64_t(0), std::uint64_t(1) << 63, std::uint64_t(100'000'001)}) {
    check_message(load_message(temp.write(little(length, 8) + "{}")), temp.file(),
                  "offset 0: header length: expected at most 100000000 bytes, got " + std::to_string(length));
    check_message(message_of<FileError>([&] { io::read_metadata(temp.file()); }), temp.file(), "header length");
  }
  check_message(load_message(temp.write(little(3, 8) + "{}")), temp.file(),
                "offset 0: truncated: the header is 3 bytes, the file has 2 after its length");
}

TEST_CASE("load: unreadable paths throw") {
  TempDirectory temp;
  check_message(load_message(temp.file()), temp.file(), "cannot open: No such file or directory");
  check_message(load_message(temp.path), temp.path, "cannot open: not a regular file");
  check_message(message_of<FileError>([&] { io::read_metadata(temp.file()); }), temp.file(), "cannot open");
}

TEST_CASE("load: leading extents of 1 may be missing") {
  TempDirectory temp;
  Cpu::Context ctx;
  Tensor<float, 1, Cpu> vector(6);
  Tensor<float, 2, Cpu> row(1, 6), other(1, 6), column(6, 1);
  Tensor<float, 3, Cpu> bank(1, 1, 6);
  fill_random(vector, 4);
  io::save(temp.file(), ctx, {}, io::Part{"params", vector});
  io::load(temp.file(), ctx, io::Part{"params", row});
  CHECK(bits(row) == bits(vector));
  io::load(temp.file(), ctx, io::Part{"params", bank});
  CHECK(bits(bank) == bits(vector));
  check_message(message_of<FileError>([&] {
                  io::load(temp.file(), ctx, io::Part{"params", column});
                }),
                temp.file(), R"(tensor "params": expected [6, 1], got [6])");
  fill_random(other, 5);
  io::save(temp.file(), ctx, {}, io::Part{"params", other});
  io::load(temp.file(), ctx, io::Part{"params", vector});
  CHECK(bits(vector) == bits(other));
}

TEST_CASE("load: tensors without elements may be missing") {
  TempDirectory temp;
  Cpu::Context ctx;
  Tensor<float, 1, Cpu> vector(6), loaded(6);
  Tensor<float, 2, Cpu> empty(3, 0), one(3, 1);
  fill_random(vector, 4);
  io::save(temp.file(), ctx, {}, io::Part{"a", vector});
  io::load(temp.file(), ctx, io::Part{"a", loaded}, io::Part{"b", empty});
  CHECK(bits(loaded) == bits(vector));
  check_message(message_of<FileError>([&] {
                  io::load(temp.file(), ctx, io::Part{"a", loaded}, io::Part{"b", one});
                }),
                temp.file(), R"(tensor "b": missing)");
  io::save(temp.file(), ctx, {}, io::Part{"a", vector}, io::Part{"b", one});
  check_message(message_of<FileError>([&] {
                  io::load(temp.file(), ctx, io::Part{"a", loaded}, io::Part{"b", empty});
                }),
                temp.file(), R"(tensor "b": expected [3, 0], got [3, 1])");
}

TEST_CASE("load: shapes that differ from the file throw") {
  TempDirectory temp;
  Cpu::Context ctx;
  Tensor<float, 2, Cpu> large(8, 64), small(4, 64);
  fill_random(small, 4);
  fill_random(large, 5);
  io::save(temp.file(), ctx, {}, io::Part{"params", small});
  const std::string before = bits(large);
  check_message(message_of<FileError>([&] {
                  io::load(temp.file(), ctx, io::Part{"params", large});
                }),
                temp.file(), R"(tensor "params": expected [8, 64], got [4, 64])");
  CHECK(bits(large) == before);
}

TEST_CASE("load: a file truncated at any byte throws") {
  TempDirectory temp;
  Cpu::Context ctx;
  Model model = make_model();
  fill_random(model, 6);
  io::save(temp.file(), ctx, {{"k", "v"}}, io::Part{"m", model});
  const std::string whole = read_bytes(temp.file()), before = bits(model);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    temp.write(std::string_view(whole).substr(0, n));
    check_message(message_of<FileError>([&] {
                    io::load(temp.file(), ctx, io::Part{"m", model});
                  }),
                  temp.file(), "truncated");
    check_message(message_of<FileError>([&] { io::read_metadata(temp.file()); }), temp.file(), "truncated");
  }
  CHECK(bits(model) == before);
}

TEST_CASE("load: a file with flipped bits loads or throws") {
  TempDirectory temp;
  Cpu::Context ctx;
  Model model = make_model();
  fill_random(model, 7);
  io::save(temp.file(), ctx, {{"k", "v"}}, io::Part{"m", model});
  const std::string whole = read_bytes(temp.file());
  std::mt19937 random(8);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bad = whole;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      char& byte = bad[random() % bad.size()];
      byte = static_cast<char>(byte ^ (random() % 4 ? 1 << random() % 8 : 1 + random() % 255));
    }
    const auto path = temp.write(bad);
    const std::string before = bits(model);
    try {
      io::load(path, ctx, io::Part{"m", model});
      ++loaded;
    } catch (const FileError& e) {
      ++refused;
      if (bits(model) != before) FAIL("the model changed, and then: ", e.what());
    }
  }
  CHECK(loaded > 200);
  CHECK(refused > 500);
}

TEST_CASE("save: a failure keeps the old file and adds none") {
  TempDirectory temp;
  Cpu::Context ctx;
  const Pair pair = make_pair();
  auto save = [&](const std::filesystem::path& path) {
    return message_of<FileError>([&] { io::save(path, ctx, {}, io::Part{"", pair}); });
  };
  const auto nowhere = temp.path / "missing" / "file";
  check_message(save(nowhere), nowhere, "No such file or directory");
  temp.write("old");
  const auto below = temp.file() / "file";
  check_message(save(below), below, "Not a directory");
  check_message(save(temp.path), temp.path, "cannot write: not a regular file");
  const auto long_name = temp.path / std::string(1000, 'x');
  check_message(save(long_name), long_name, "File name too long");

  CHECK(read_bytes(temp.file()) == "old");
  CHECK(temp.entries() == 1);
}

TEST_CASE("save: invalid names throw") {
  TempDirectory temp;
  Cpu::Context ctx;
  Pair pair = make_pair();
  temp.write("old");
  auto save = [&](const char* first, const char* second, const io::Metadata& metadata = {}) {
    return message_of<ArgumentError>([&] {
      io::save(temp.file(), ctx, metadata, io::Part{first, pair}, io::Part{second, pair});
    });
  };
  CHECK(save("p", "p") == "io::save: tensor names: expected distinct names, got two of \"p.a\"");
  CHECK(save("p", "\xff").starts_with("io::save: names and metadata: expected UTF-8"));
  CHECK(save("p", "q", {{"k", "\xff"}}).starts_with("io::save: names and metadata: expected UTF-8"));
  CHECK(message_of<ArgumentError>([&] {
          io::save(temp.file(), ctx, {}, io::Part{"__metadata__", pair.a});
        }) == "io::save: tensor name: expected any name except \"__metadata__\", got __metadata__");
  CHECK(message_of<ArgumentError>([&] {
          io::load(temp.file(), ctx, io::Part{"", pair}, io::Part{"", pair});
        }) == "io::load: tensor names: expected distinct names, got two of \"a\"");
  CHECK(read_bytes(temp.file()) == "old");
  CHECK(temp.entries() == 1);
}

#if defined(__unix__)
TEST_CASE("save: a full disk throws and keeps the old file") {
  TempDirectory temp;
  Cpu::Context ctx;
  temp.write("old");
  const Pair small = make_pair();
  Tensor<double, 1, Cpu> large(100'000);
  fill_random(large, 9);

  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  std::string first, second;
  {
    // No file may exceed 100 bytes: the small one fails when it is closed, the large one while it is written.
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before;
    limit.rlim_cur = 100;
    setrlimit(RLIMIT_FSIZE, &limit);
    first = message_of<FileError>([&] { io::save(temp.file(), ctx, {}, io::Part{"", small}); });
    second = message_of<FileError>([&] { io::save(temp.file(), ctx, {}, io::Part{"", large}); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  }
  check_message(first, temp.file(), "cannot write: File too large");
  check_message(second, temp.file(), "cannot write: File too large");
  CHECK(read_bytes(temp.file()) == "old");
  CHECK(temp.entries() == 1);
}
#endif
