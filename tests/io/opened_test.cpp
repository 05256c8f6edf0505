#include "gatefold/io/opened.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "support/temp_directory.hpp"
#include "support/text_file.hpp"

using namespace gatefold;
using support::refusal;
using support::TempDirectory;

namespace {

struct Pair {
  Tensor<float, 1, Cpu> a{3}, b{2};
  GATEFOLD_PACK(a, b)
};
std::string file(std::string header, std::size_t elements) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + std::string(elements, '\0');
}
std::string tensor(const std::string& name, int count) {
  return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(count) + "],\"data_offsets\":[0," +
         std::to_string(4 * count) + "]}";
}

/// A pair of tensors in two parts.
struct Parts {
  TempDirectory temp;
  std::filesystem::path path = temp.path / "m.safetensors";
  Parts() {
    temp.write(file("{" + tensor("a", 3) + "}", 12), "m-1.safetensors");
    temp.write(file("{" + tensor("b", 2) + "}", 8), "m-2.safetensors");
    index(R"("a": "m-1.safetensors", "b": "m-2.safetensors")");
  }
  void index(const std::string& map) const {
    temp.write(R"({"__metadata__": {"k": "v", "number": 3}, "weight_map": {)" + map + "}}", "m.safetensors.index.json");
  }
  std::string said() const {
    return refusal([&] {
      Cpu::Context ctx(1);
      Pair pair;
      io::load(path, ctx, io::Part{"", pair});
    });
  }
  std::string in(const char* name) const { return (temp.path / name).string(); }
};

}  // namespace

TEST_CASE("Opened: a path opens its index and parts") {
  const Parts parts;
  CHECK(parts.said() == "no FileError");
  CHECK(io::read_metadata(parts.path) == io::Metadata{{"k", "v"}});
  CHECK(io::read_names(parts.path) == std::set<std::string>{"a", "b"});
  CHECK(io::read_metadata(parts.in("m.safetensors.index.json")) == io::Metadata{{"k", "v"}});
  const std::string variant = parts.in("m.safetensors.index.fp16.json");
  std::filesystem::copy(parts.in("m.safetensors.index.json"), variant);
  CHECK(io::read_metadata(variant) == io::Metadata{{"k", "v"}});
  CHECK(io::exists(parts.path));
  CHECK_FALSE(io::exists(parts.in("n.safetensors")));
  CHECK(io::exists(variant));
  CHECK_FALSE(io::exists(parts.in("n.safetensors.index.json")));
  // The index has precedence over a file at the path.
  parts.temp.write("no tensors", "m.safetensors");
  CHECK(parts.said() == "no FileError");
  std::filesystem::remove(parts.in("m.safetensors.index.json"));
  CHECK(parts.said().starts_with(parts.path.string() + ": offset 0: header length"));
  CHECK(io::exists(parts.path));
}

TEST_CASE("Opened: missing, truncated or incomplete parts throw with their name") {
  const Parts parts;
  parts.index(R"("a": "m-1.safetensors")");
  CHECK(parts.said() == parts.in("m-1.safetensors") + ": tensor \"b\": missing");
  parts.index(R"("a": "m-1.safetensors", "b": "m-1.safetensors")");
  CHECK(parts.said() == parts.in("m.safetensors.index.json") + ": tensor \"b\": index: expected in " +
                            parts.in("m-1.safetensors") + ", which does not contain it");
  parts.index("");
  CHECK(parts.said() == parts.path.string() + ": tensor \"a\": missing");
  parts.index(R"("a": "m-1.safetensors", "b": "m-2.safetensors")");
  const std::string second = support::read_bytes(parts.in("m-2.safetensors"));
  parts.temp.write(second.substr(0, second.size() - 1), "m-2.safetensors");
  CHECK(parts.said().find(parts.in("m-2.safetensors") + ": offset ") == 0);
  CHECK(parts.said().find("truncated: tensor \"b\"") != std::string::npos);
  std::filesystem::remove(parts.in("m-2.safetensors"));
  CHECK(parts.said() == parts.in("m-2.safetensors") + ": cannot open: No such file or directory");
  // The file has a tensor that the pack does not have.
  parts.temp.write(file("{" + tensor("b", 2) + "," + tensor("c", 0) + "}", 8), "m-2.safetensors");
  CHECK(parts.said().find("tensor \"c\": unexpected") != std::string::npos);
}

TEST_CASE("Opened: parts of another set throw; nothing changes") {
  namespace fs = std::filesystem;
  const auto save = [](const fs::path& path, float value) {
    Cpu::Context ctx(1);
    Pair pair;
    for (Index i = 0; i < 3; ++i) pair.a(i) = value;
    for (Index i = 0; i < 2; ++i) pair.b(i) = value;
    io::save(path, ctx, {}, io::SaveOptions{.max_file_bytes = 12}, io::Part{"", pair});
  };
  const auto parts_of = [](const TempDirectory& temp) {
    std::vector<fs::path> parts;
    for (const auto& entry : fs::directory_iterator(temp.path))
      if (entry.path().extension() == ".safetensors") parts.push_back(entry.path());
    std::sort(parts.begin(), parts.end());
    return parts;
  };
  const auto said = [](const TempDirectory& temp) {
    return refusal([&] {
      Cpu::Context ctx(1);
      Pair pair;
      pair.a(0) = pair.b(0) = -1;
      try {
        io::load(temp.file(), ctx, io::Part{"", pair});
      } catch (const FileError&) {
        CHECK((pair.a(0) == -1 && pair.b(0) == -1));
        throw;
      }
    });
  };
  const auto without = [](const fs::path& part) {  // as older versions wrote parts: without metadata
    std::string bytes = support::read_bytes(part);
    const std::size_t begin = bytes.find("\"__metadata__\""), end = bytes.find("},", begin) + 2;
    REQUIRE(end > begin);
    bytes.replace(bytes.find("}}", end) + 2, 0, std::string(end - begin, ' '));
    bytes.erase(begin, end - begin);
    std::ofstream(part, std::ios::binary) << bytes;
  };
  const TempDirectory one, two;
  save(two.file(), 2);
  const auto others = parts_of(two);
  REQUIRE(others.size() == 2);
  for (std::size_t f = 0; f < 2; ++f) {
    CAPTURE(f);
    save(one.file(), 1);
    const auto parts = parts_of(one);
    REQUIRE(parts.size() == 2);
    CHECK(said(one) == "no FileError");
    const std::string sentence = parts[f].string() + ": a part of another save: expected metadata gatefold.content " +
                                 parts[f].filename().string().substr(5, 16) + ", as in the file name";
    fs::copy_file(others[f], parts[f], fs::copy_options::overwrite_existing);
    CHECK(said(one) == sentence);
    CHECK_THROWS_WITH_AS(io::read_metadata(one.file()), sentence.c_str(), FileError);
    without(parts[f]);  // a part without metadata, from an older version or another program, next to one with it
    CHECK(said(one) == "no FileError");
    without(parts[1 - f]);
    CHECK(said(one) == "no FileError");
    // All parts belong to another save.
    for (std::size_t i = 0; i < 2; ++i) fs::copy_file(others[i], parts[i], fs::copy_options::overwrite_existing);
    CHECK(said(one).find("a part of another save") != std::string::npos);
  }
  CHECK(said(two) == "no FileError");
}
