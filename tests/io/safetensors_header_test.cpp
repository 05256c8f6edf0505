#include "gatefold/io/safetensors_header.hpp"

#include <doctest/doctest.h>

#if defined(__linux__)
#include <malloc.h>
#endif

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

using gatefold::FileError;
namespace io = gatefold::io;
namespace safetensors = gatefold::io::safetensors;

namespace {

/// A file that is gone at the end of the scope.
struct Written {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("gatefold_header_" + std::to_string(std::random_device{}()));
  explicit Written(const std::string& json) {
    std::ofstream file(path, std::ios::binary);
    const std::uint64_t length = json.size();
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << json;
  }
  Written(const Written&) = delete;
  ~Written() { std::filesystem::remove(path); }
};

safetensors::Header header_of(const std::filesystem::path& path) {
  safetensors::Opened from(path);
  return safetensors::read_header(from, [](const std::string&) { return true; });
}
/// What reading says: "" where it says nothing.
std::string refusal(const std::string& json) {
  const Written file(json);
  try {
    header_of(file.path);
  } catch (const FileError& e) {
    return std::string(e.what()).substr(file.path.string().size() + 2);
  }
  return "";
}

/// n tensors of a float each.
std::string long_header(int n) {
  std::string json = "{";
  for (int i = 0; i < n; ++i) {
    const std::string at = std::to_string(4 * i), end = std::to_string(4 * i + 4);
    json += (i ? ",\"layers." : "\"layers.") + std::to_string(i) + ".weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + at + "," + end + "]}";
  }
  return json + "}";
}

}  // namespace

TEST_CASE("what a header says") {
  const Written file(R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16],"new":{"x":1}},)"
                     R"("\u00e4":{"shape":[],"data_offsets":[0,4],"dtype":"F32"}}  )");
  const safetensors::Header header = header_of(file.path);
  CHECK(header.metadata == io::Metadata{{"k", "v"}});
  REQUIRE(header.tensors.size() == 2);
  const auto& a = header.tensors[0];
  CHECK(header.name(a) == "a");
  CHECK(header.dtype(a) == "BF16");
  CHECK(header.shape(a) == std::vector<std::uint64_t>{2, 3});
  CHECK(a.begin == 4);
  CHECK(a.end == 16);
  CHECK(header.name(header.tensors[1]) == "\u00e4");
  CHECK(header.shape(header.tensors[1]).empty());
}

TEST_CASE("bytes after the JSON, of any kind but white space, are refused, and so is what is no UTF-8") {
  CHECK(refusal("{}") == "");
  CHECK(refusal("{} \n\t ") == "");
  for (const std::string tail : {"x", "{}", "\"", ",", "]", "//", "\xff", "\xc3\xa4"}) {
    CHECK(refusal("{}" + tail).find("not JSON") != std::string::npos);
    CHECK(refusal("{} " + tail).find("not JSON") != std::string::npos);
  }
  CHECK(refusal(std::string("{}\0", 3)) == "offset 10: header: not JSON: a zero byte");
  CHECK(refusal(std::string("{}\0{\xff", 5)) == "offset 10: header: not JSON: a zero byte");
  for (const std::string bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    CHECK(refusal("{\"" + bad + R"(":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})").find("not JSON") != std::string::npos);
    CHECK(refusal(R"({"__metadata__":{"k":")" + bad + "\"}}").find("not JSON") != std::string::npos);
  }
}

TEST_CASE("the whole of a tensor is checked, whoever asks") {
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})") == "");
  CHECK(refusal(R"({"a":{"shape":[1],"data_offsets":[0,4]}})") == "offset 8: tensor \"a\": no dtype");
  CHECK(refusal(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})") == "offset 8: tensor \"a\": no shape");
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1]}})") == "offset 8: tensor \"a\": no data_offsets");
  for (const std::string value : {"1", "\"x\"", "null", "true", "[]", "[1]", "[\"x\"]"})
    CHECK(refusal("{\"a\":" + value + "}") == "offset 8: tensor \"a\": expected an object");
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})") ==
        "offset 8: tensor \"a\": shape: expected an array of non-negative integers");
  CHECK(refusal(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})") ==
        "offset 8: tensor \"a\": no dtype");
  CHECK(refusal(R"({"__metadata__":{},"__metadata__":{}})") == "offset 8: header: \"__metadata__\" appears twice");
}

TEST_CASE("names that appear twice are found however far apart") {
  std::string json = long_header(1000);
  json.insert(1, R"("layers.777.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)");
  CHECK(refusal(json) == "offset 8: header: \"layers.777.weight\" appears twice");
}

// Where every name was compared with every other, this ran into the time limit of tests.
TEST_CASE("a hundred thousand tensors") {
  constexpr int n = 100'000;
  const std::string json = long_header(n);
  const Written file(json);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  const auto held = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = held();
#endif
  const safetensors::Header header = header_of(file.path);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(held() - before < 2 * json.size());  // and the text itself while it was read
#endif
  REQUIRE(header.tensors.size() == n);
  CHECK(header.name(header.tensors[n - 1]) == "layers.99999.weight");
  CHECK(header.tensors[n - 1].end == 4 * n);
}

TEST_CASE("header_bytes: what is written is read, whatever the names are") {
  const std::vector<safetensors::Entry> list{{"a \"\\\n", "F32", {2, 0, 3}, 0}, {"\u2200", "I64", {}, 8}};
  const std::string bytes = safetensors::header_bytes({{"\x01", ""}}, {&list[1], &list[0]});
  CHECK(bytes.size() % 8 == 0);
  const Written file(bytes.substr(8));
  const safetensors::Header header = header_of(file.path);
  CHECK(header.metadata == io::Metadata{{"\x01", ""}});
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.name(header.tensors[0]) == "\u2200");
  CHECK(header.name(header.tensors[1]) == "a \"\\\n");
  CHECK(header.tensors[1].begin == 8);
  CHECK(header.shape(header.tensors[1]) == std::vector<std::uint64_t>{2, 0, 3});
}
