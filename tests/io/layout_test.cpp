#include "gatefold/io/layout.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace gatefold::io;
using gatefold::ArgumentError;
using safetensors::Entry;
using safetensors::Layout;
using safetensors::layout_of;
using safetensors::PartNames;

namespace {

// Tensors of 40, 8, 12 and 16 bytes. Their order in a file is c (I64), b (F64), a, d (F32).
const std::vector<Entry> list{
    {"d", "F32", {10}, 40}, {"b", "F64", {1}, 8}, {"a", "F32", {3}, 12}, {"c", "I64", {2}, 16}};

std::vector<std::vector<std::string>> names(const Layout& layout) {
  std::vector<std::vector<std::string>> found(layout.files.size());
  for (const std::size_t i : layout.order) found[layout.places[i].file].push_back(layout.list[i].name);
  return found;
}

}  // namespace

TEST_CASE("Layout: sorts tensors by element size, then by name") {
  const Layout layout = layout_of({{"k", "v"}}, list, {});
  CHECK(names(layout) == std::vector<std::vector<std::string>>{{"c", "b", "a", "d"}});
  CHECK_FALSE(layout.in_parts());
  const std::uint64_t expected[] = {36, 16, 24, 0};  // of d, b, a, c
  for (std::size_t i = 0; i < list.size(); ++i) CHECK(layout.places[i].begin == expected[i]);
  CHECK(layout.files[0].begin == layout.files[0].header.size());
  CHECK(layout.files[0].size() == layout.files[0].header.size() + 76);
  CHECK(layout.files[0].header.find(R"("__metadata__":{"k":"v"})") != std::string::npos);
}

TEST_CASE("Layout: elements of any size are aligned") {
  const std::vector<Entry> mixed{{"a", "U8", {3}, 3},  {"b", "BF16", {5}, 10}, {"c", "I8", {1}, 1},
                                 {"d", "F32", {1}, 4}, {"e", "F16", {3}, 6},   {"f", "F64", {1}, 8},
                                 {"g", "BF16", {1}, 2}};
  CHECK(names(layout_of({}, mixed, {})) == std::vector<std::vector<std::string>>{{"f", "d", "e", "b", "g", "c", "a"}});
}

TEST_CASE("Layout: aligned tensors come first, at multiples of 64 bytes") {
  std::vector<Entry> mixed{{"a", "F64", {1}, 8}, {"b", "U8", {64}, 64}, {"c", "F32", {1}, 4}, {"d", "BF16", {64}, 128}};
  for (Entry& entry : mixed) entry.aligned = entry.bytes >= 64;
  const Layout one = layout_of({}, mixed, {}), parts = layout_of({}, mixed, {.max_file_bytes = 140});
  CHECK(names(one) == std::vector<std::vector<std::string>>{{"b", "d", "a", "c"}});
  CHECK(one.files[0].begin % 64 == 0);
  CHECK(names(parts) == std::vector<std::vector<std::string>>{{"b"}, {"d", "a", "c"}});
  for (const auto& file : parts.files) CHECK(file.begin % 64 == 0);
}

TEST_CASE("Layout: parts fill up; larger tensors have their own part") {
  const auto parts = [](gatefold::Index most) { return names(layout_of({}, list, {.max_file_bytes = most})); };
  using Names = std::vector<std::vector<std::string>>;
  CHECK(parts(76) == Names{{"c", "b", "a", "d"}});
  CHECK(parts(75) == Names{{"c", "b", "a"}, {"d"}});
  CHECK(parts(36) == Names{{"c", "b", "a"}, {"d"}});
  CHECK(parts(35) == Names{{"c", "b"}, {"a"}, {"d"}});
  CHECK(parts(1) == Names{{"c"}, {"b"}, {"a"}, {"d"}});
  CHECK(layout_of({}, {}, {.max_file_bytes = 1}).files.size() == 1);
  const Layout layout = layout_of({{"k", "v"}}, list, {.max_file_bytes = 36});
  for (const auto& file : layout.files) {  // each part has room for its content id, but not the metadata of the whole
    const std::string room = R"({"__metadata__":{"format":"pt","gatefold.content":"0000000000000000"},)";
    CHECK(file.header.find(room) == 8);
    CHECK(file.content == 8 + room.find('0'));
    CHECK(file.header.find("__metadata__", 8 + room.size()) == std::string::npos);
  }
  CHECK(layout_of({{"k", "v"}}, list, {}).files[0].header.find("gatefold.content") == std::string::npos);
  const Layout of_format = layout_of({{"format", "np"}}, list, {.max_file_bytes = 36});
  CHECK(of_format.files[1].header.find(R"({"__metadata__":{"format":"np",)") == 8);
  CHECK(layout.places[0].begin == 0);
  CHECK(layout.files[1].elements == 40);
}

TEST_CASE("Layout: wrong sizes and metadata throw") {
  CHECK_THROWS_WITH_AS(layout_of({}, list, {.max_file_bytes = -1}),
                       "SaveOptions: max_file_bytes: expected at least 0 (0: one file), got -1", ArgumentError);
  // The metadata is checked before anything is written, also if it goes to the index.
  for (const gatefold::Index most : {0, 8})
    CHECK_THROWS_AS(layout_of({{"k", "\xff"}}, list, {.max_file_bytes = most}), ArgumentError);
}

TEST_CASE("PartNames: recognises only names of its own parts") {
  const PartNames of("folder/run.safetensors");
  CHECK(of.of(0xabc, 0, 3) == "run-0000000000000abc-00001-of-00003.safetensors");
  CHECK(PartNames("run").of(~std::uint64_t(0), 11, 12) == "run-ffffffffffffffff-00012-of-00012.safetensors");
  CHECK(of.contains("run-0000000000000abc-00001-of-00003.safetensors"));
  for (const char* other :
       {"run.safetensors", "run-00001-of-00003.safetensors", "run-0000000000000abc-00001-of-00003.safetensors.tmp",
        "ran-0000000000000abc-00001-of-00003.safetensors", "run-0000000000000abg-00001-of-00003.safetensors",
        "run-0000000000000abc-0000a-of-00003.safetensors", "run-x-0000000000000abc-00001-of-00003.safetensors", ""})
    CHECK_FALSE(of.contains(other));
}

TEST_CASE("index_text: lists each tensor's file, total size and metadata") {
  const Layout layout = layout_of({{"k", "v"}}, list, {.max_file_bytes = 36});
  const auto index = nlohmann::json::parse(safetensors::index_text(layout, {"one", "two"}));
  CHECK(index == nlohmann::json::parse(R"({"metadata": {"total_size": 76}, "__metadata__": {"k": "v"},
    "weight_map": {"a": "one", "b": "one", "c": "one", "d": "two"}})"));
}
