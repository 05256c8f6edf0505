#include "gatefold/io/safetensors_header.hpp"

#include <doctest/doctest.h>

#if defined(__linux__)
#include <malloc.h>
#endif

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using gatefold::FileError;
namespace io = gatefold::io;
namespace safetensors = gatefold::io::safetensors;

namespace {

/// A file that is deleted at the end of the scope.
struct Written {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("gatefold_header_" + std::to_string(std::random_device{}()));
  explicit Written(const std::string& json, std::size_t data = 0) {
    std::ofstream file(path, std::ios::binary);
    const std::uint64_t length = json.size();
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << json << std::string(data, 'x');
  }
  Written(const Written&) = delete;
  ~Written() { std::filesystem::remove(path); }
};

safetensors::Header header_of(const std::filesystem::path& path) {
  gatefold::RegularFile from(path);
  return safetensors::read_header(from, [](const std::string&) { return true; });
}
/// Returns the message of reading the file, "" if there is none.
std::string refusal(const std::string& json, std::size_t data = 0) {
  const Written file(json, data);
  try {
    header_of(file.path);
  } catch (const FileError& e) {
    return std::string(e.what()).substr(file.path.string().size() + 2);
  }
  return "";
}

/// Returns a header with n tensors of one float each.
std::string long_header(int n) {
  std::string json = "{";
  for (int i = 0; i < n; ++i) {
    const std::string at = std::to_string(4 * i), end = std::to_string(4 * i + 4);
    json += (i ? ",\"layers." : "\"layers.") + std::to_string(i) +
            ".weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + at + "," + end + "]}";
  }
  return json + "}";
}

}  // namespace

TEST_CASE("read_header: returns metadata, and tensors in file order") {
  const Written file(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16],"new":{"x":1}},)"
      R"("\u00e4":{"shape":[],"data_offsets":[0,4],"dtype":"F32"}}  )",
      16);
  const safetensors::Header header = header_of(file.path);
  CHECK(header.metadata == io::Metadata{{"k", "v"}});
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.name(header.tensors[0]) == "\u00e4");
  CHECK(header.shape(header.tensors[0]).empty());
  const auto& a = header.tensors[1];
  CHECK(header.name(a) == "a");
  CHECK(a.dtype->name == "BF16");
  CHECK(header.shape(a) == std::vector<std::uint64_t>{2, 3});
  CHECK(a.begin == 4);
  CHECK(a.end == 16);
}

TEST_CASE("read_header: leading blanks throw; trailing blanks are ignored") {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (const std::string blanks : {" ", "   ", "\n", "\t", "\r\n"}) {
    CHECK(header_of(Written(header + blanks, 4).path).tensors.size() == 1);
    CHECK(refusal(blanks + "{}") == "offset 8: header: expected '{'");
  }
}

TEST_CASE("read_header: trailing bytes and invalid UTF-8 throw") {
  CHECK(refusal("{}") == "");
  CHECK(refusal("{} \n\t ") == "");
  for (const std::string head : {"", " {}", "\n{}", "[]", "x"})
    CHECK(refusal(head) == "offset 8: header: expected '{'");
  CHECK(refusal(R"({"__metadata__":null})") == "");
  for (const std::string tail : {"x", "{}", "\"", ",", "]", "//", "\xff", "\xc3\xa4"}) {
    CHECK(refusal("{}" + tail).find("not JSON") != std::string::npos);
    CHECK(refusal("{} " + tail).find("not JSON") != std::string::npos);
  }
  CHECK(refusal(std::string("{}\0", 3)) == "offset 10: header: not JSON: a zero byte");
  CHECK(refusal(std::string("{}\0{\xff", 5)) == "offset 10: header: not JSON: a zero byte");
  for (const std::string bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    CHECK(refusal("{\"" + bad + R"(":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})").find("not JSON") !=
          std::string::npos);
    CHECK(refusal(R"({"__metadata__":{"k":")" + bad + "\"}}").find("not JSON") != std::string::npos);
  }
}

TEST_CASE("read_header: missing or malformed tensor fields throw") {
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4) == "");
  CHECK(refusal(R"({"a":{"shape":[1],"data_offsets":[0,4]}})") == "offset 8: tensor \"a\": no dtype");
  CHECK(refusal(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})") == "offset 8: tensor \"a\": no shape");
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1]}})") == "offset 8: tensor \"a\": no data_offsets");
  const auto inside = [](std::size_t depth) {  // nested arrays in a field that the format does not have
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"new":)" + std::string(depth, '[') +
           std::string(depth, ']') + "}}";
  };
  CHECK(refusal(inside(125), 4) == "");
  CHECK(refusal(inside(126), 4) == "offset 8: header: nested too deeply");
  for (const std::string value : {"1", "\"x\"", "null", "true", "[]", "[1]", "[\"x\"]"})
    CHECK(refusal("{\"a\":" + value + "}") == "offset 8: tensor \"a\": expected an object");
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})") ==
        "offset 8: tensor \"a\": shape: expected an array of non-negative integers");
  CHECK(refusal(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})") == "offset 8: tensor \"a\": no dtype");
  CHECK(refusal(R"({"__metadata__":{},"__metadata__":{}})") == "offset 8: header: \"__metadata__\" appears twice");
}

TEST_CASE("read_header: dtypes, shapes, offsets and file end must agree") {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                      std::size_t data) {
    return refusal(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                   data);
  };
  struct Type {
    const char* names;  // types with the same number of bits per element
    std::size_t bits;
  };
  for (const Type& type : {Type{"F4", 4},
                           {"F6_E2M3 F6_E3M2", 6},
                           {"BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ", 8},
                           {"I16 U16 F16 BF16", 16},
                           {"I32 U32 F32", 32},
                           {"F64 I64 U64 C64", 64}}) {
    std::istringstream names(type.names);
    for (std::string name; names >> name;) {
      const std::string end = std::to_string(type.bits);  // 8 elements
      CHECK(one(name, "[2,4]", "[0," + end + "]", type.bits) == "");
      CHECK(one(name, "[2,5]", "[0," + end + "]", type.bits)
                .find(type.bits * 10 % 8 ? "a whole number of bytes" : "data_offsets") != std::string::npos);
    }
  }
  for (const char* name : {"", "f32", "F128", "F32 ", "FP32"})
    CHECK(one(name, "[1]", "[0,4]", 4).find("dtype: expected a type of the format, got ") != std::string::npos);

  CHECK(one("F32", "[1]", "[0,4]", 3) == "offset 65: truncated: tensor \"a\": ends at 66");
  CHECK(one("F32", "[1]", "[0,4]", 5) == "offset 66: expected the end of the file, found more bytes");
  CHECK(one("F32", "[1]", "[4,8]", 8) == "offset 8: tensor \"a\": data_offsets: expected to begin at 0, got 4 (gap)");
  CHECK(one("F32", "[1]", "[4,0]", 4) == "offset 8: tensor \"a\": data_offsets: expected begin <= end, got [4, 0]");
  CHECK(one("F32", "[1]", "[0,4,4]", 4) == "offset 8: tensor \"a\": data_offsets: expected 4 bytes, got 3 numbers");
  CHECK(one("F32", "[1]", "[]", 4) == "offset 8: tensor \"a\": data_offsets: expected 4 bytes, got 0 numbers");
  CHECK(one("F32", "[2]", "[0,4]", 4) == "offset 8: tensor \"a\": data_offsets: expected 8 bytes, got [0, 4]");
  CHECK(one("F32", "[0,9223372036854775808,4]", "[0,0]", 0) == "");
  // The products wrap around to the number that the offsets give.
  CHECK(one("F32", "[9223372036854775808,2,1]", "[0,0]", 0).find("less than 2^64 bits") != std::string::npos);
  CHECK(one("F32", "[9223372036854775808,4,0]", "[0,0]", 0).find("less than 2^64 bits") != std::string::npos);
  CHECK(one("F32", "[4294967297,4294967297]", "[0,34359738372]", 4).find("less than 2^64 bits") != std::string::npos);
  CHECK(one("F32", "[4611686018427387905]", "[0,4]", 4).find("less than 2^64 bits") != std::string::npos);

  const std::string a =
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":)";
  CHECK(refusal(a + "[2,4]}}", 4) == "");
  CHECK(refusal(a + "[1,3]}}", 4) == "offset 8: tensor \"b\": data_offsets: expected to begin at 2, got 1 (overlap)");
  CHECK(refusal(a + "[0,2]}}", 4) == "offset 8: tensor \"b\": data_offsets: expected to begin at 2, got 0 (overlap)");
  CHECK(refusal(a + "[3,5]}}", 5) == "offset 8: tensor \"b\": data_offsets: expected to begin at 2, got 3 (gap)");
  CHECK(refusal("{}", 1) == "offset 10: expected the end of the file, found more bytes");
}

TEST_CASE("read_header: a name that appears twice throws") {
  std::string json = long_header(1000);
  json.insert(1, R"("layers.777.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)");
  CHECK(refusal(json) == "offset 8: header: \"layers.777.weight\" appears twice");
}

// A comparison of every name with every other name would exceed the time limit of tests.
TEST_CASE("read_header: reads 100,000 tensors") {
  constexpr int n = 100'000;
  const std::string json = long_header(n);
  const Written file(json, 4 * n);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  const auto held = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = held();
#endif
  const safetensors::Header header = header_of(file.path);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(held() - before < 2 * json.size());  // during reading, also the text of the header is held
#endif
  REQUIRE(header.tensors.size() == n);
  CHECK(header.name(header.tensors[n - 1]) == "layers.99999.weight");
  CHECK(header.tensors[n - 1].end == 4 * n);
}

TEST_CASE("header_bytes: read_header reads any name that it writes") {
  const std::vector<safetensors::Entry> list{{"a \"\\\n", "F32", {2, 0, 3}, 0}, {"\u2200", "I64", {}, 8}};
  const std::string bytes = safetensors::header_bytes({{"\x01", ""}}, {&list[1], &list[0]});
  CHECK(bytes.size() % 8 == 0);
  const Written file(bytes.substr(8), 8);
  const safetensors::Header header = header_of(file.path);
  CHECK(header.metadata == io::Metadata{{"\x01", ""}});
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.name(header.tensors[0]) == "\u2200");
  CHECK(header.name(header.tensors[1]) == "a \"\\\n");
  CHECK(header.tensors[1].begin == 8);
  CHECK(header.shape(header.tensors[1]) == std::vector<std::uint64_t>{2, 0, 3});
}
