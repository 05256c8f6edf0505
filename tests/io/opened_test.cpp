#include "gatefold/io/opened.hpp"

#include <doctest/doctest.h>

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
  static void each(auto&& f, auto&... p) {
    f("a", p.a...);
    f("b", p.b...);
  }
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

/// A pair in two parts.
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

TEST_CASE("a path means the parts of an index beside it, or that index") {
  const Parts parts;
  CHECK(parts.said() == "no FileError");
  CHECK(io::read_metadata(parts.path) == io::Metadata{{"k", "v"}});
  CHECK(io::read_names(parts.path) == std::set<std::string>{"a", "b"});
  CHECK(io::read_metadata(parts.in("m.safetensors.index.json")) == io::Metadata{{"k", "v"}});
  CHECK(io::exists(parts.path));
  CHECK_FALSE(io::exists(parts.in("n.safetensors")));
  // The index goes before a file of the path.
  parts.temp.write("no tensors", "m.safetensors");
  CHECK(parts.said() == "no FileError");
  std::filesystem::remove(parts.in("m.safetensors.index.json"));
  CHECK(parts.said().starts_with(parts.path.string() + ": offset 0: header length"));
  CHECK(io::exists(parts.path));
}

TEST_CASE("parts that lack a tensor, are cut, or are not there are refused with their names") {
  const Parts parts;
  parts.index(R"("a": "m-1.safetensors")");
  CHECK(parts.said() == parts.in("m-1.safetensors") + ": tensor \"b\": missing");
  parts.index(R"("a": "m-1.safetensors", "b": "m-1.safetensors")");
  CHECK(parts.said() == parts.in("m.safetensors.index.json") + ": tensor \"b\": index: expected in " +
                            parts.in("m-1.safetensors") + ", which has none");
  parts.index("");
  CHECK(parts.said() == parts.path.string() + ": tensor \"a\": missing");
  parts.index(R"("a": "m-1.safetensors", "b": "m-2.safetensors")");
  const std::string second = support::read_bytes(parts.in("m-2.safetensors"));
  parts.temp.write(second.substr(0, second.size() - 1), "m-2.safetensors");
  CHECK(parts.said().find(parts.in("m-2.safetensors") + ": offset ") == 0);
  CHECK(parts.said().find("truncated: tensor \"b\"") != std::string::npos);
  std::filesystem::remove(parts.in("m-2.safetensors"));
  CHECK(parts.said() == parts.in("m-2.safetensors") + ": cannot open: No such file or directory");
  // And what is there but not wanted.
  parts.temp.write(file("{" + tensor("b", 2) + "," + tensor("c", 0) + "}", 8), "m-2.safetensors");
  CHECK(parts.said().find("tensor \"c\": unexpected") != std::string::npos);
}
