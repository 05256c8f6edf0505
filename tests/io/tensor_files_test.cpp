#include "gatefold/io/tensor_files.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/temp_directory.hpp"
#include "support/text_file.hpp"

using gatefold::Index;
using gatefold::io::TensorFiles;
using gatefold::support::refusal;
using gatefold::support::TempDirectory;

namespace {

std::string file(std::string header, const std::string& elements) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + elements;
}
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}
const std::string one = file("{" + entry("b", "I8", "[2,2]", 0, 4) + "," + entry("a", "BF16", "[1]", 4, 6) + "}",
                             std::string("\1\2\xff\4\xc0\x3f"));

}  // namespace

TEST_CASE("TensorFiles: lists tensors and reads them as any type") {
  const TempDirectory temp;
  const TensorFiles files(temp.write(one, "one.safetensors"));
  REQUIRE(files.tensors().size() == 2);
  CHECK(files.tensors()[0].name == "a");
  CHECK(files.tensors()[0].dtype == "BF16");
  CHECK(files.tensors()[1].shape == std::vector<std::uint64_t>{2, 2});
  CHECK(files.contains("b"));
  CHECK_FALSE(files.contains("c"));
  CHECK(files.read<float>("a") == std::vector<float>{1.5f});
  CHECK(files.read<double>("b") == std::vector<double>{1, 2, -1, 4});
  CHECK(files.read<Index>("b") == std::vector<Index>{1, 2, -1, 4});
  CHECK(files.info("a").shape == std::vector<std::uint64_t>{1});
}

TEST_CASE("TensorFiles: read_part reads only one part of a tensor") {
  const TempDirectory temp;
  const TensorFiles files(
      temp.write(file("{" + entry("x", "U16", "[2,6]", 0, 24) + "}", "aAbBcCdDeEfFgGhHiIjJkKlL"), "runs.safetensors"));
  const auto part = [&](std::uint64_t run, std::uint64_t number, std::uint64_t parts) {
    std::string text;
    try {
      for (const std::byte b : files.read_part("x", {run, number, parts})) text += static_cast<char>(b);
    } catch (const gatefold::ArgumentError& error) {
      text = error.what();
    }
    return text;
  };
  CHECK(part(12, 0, 1) == "aAbBcCdDeEfFgGhHiIjJkKlL");
  CHECK(part(3, 0, 2) == "aAbBcCgGhHiI");
  CHECK(part(3, 1, 2) == "dDeEfFjJkKlL");
  CHECK(part(2, 2, 3) == "eEfFkKlL");
  CHECK(part(1, 1, 3) == "bBeEhHkK");
  const std::string wrong =
      "TensorFiles.read_part: run, part, parts: expected part < parts, and run * parts to divide 12 elements, got ";
  CHECK(part(4, 0, 2) == wrong + "4, 0, 2");
  CHECK(part(3, 2, 2) == wrong + "3, 2, 2");
  CHECK(part(0, 0, 1) == wrong + "0, 0, 1");
  CHECK(part(12, 0, 0) == wrong + "12, 0, 0");
}

TEST_CASE("TensorFiles: read_part reads some elements of a part") {
  const std::filesystem::path folder = std::filesystem::path(GATEFOLD_TEST_DIR) / "golden/block_scales";
  const TensorFiles scaled(folder / "scaled.safetensors");
  const TempDirectory temp;
  std::string long_text;  // runs of more than a megabyte
  for (unsigned i = 0; i < 6'000'000; ++i) long_text += static_cast<char>(i * i / 7);
  const TensorFiles long_runs(
      temp.write(file("{" + entry("x", "U16", "[3000000]", 0, 6'000'000) + "}", long_text), "long.safetensors"));
  const auto check = [](const TensorFiles& files, const char* name, const TensorFiles::Part& of, std::size_t element,
                        std::uint64_t all) {
    // Computes the part from the whole tensor by definition: run r of the tensor belongs to part r mod parts.
    const std::vector<std::byte> bytes = files.read_bytes(name);
    std::vector<std::byte> part;
    for (std::uint64_t i = 0; i < all; ++i)
      if (i / of.run % of.parts == of.part)
        for (std::size_t b = 0; b < element; ++b) part.push_back(bytes[i * element + b]);
    for (const std::uint64_t first : {std::uint64_t(0), std::uint64_t(1), all / of.parts / 3, all / of.parts})
      for (const std::uint64_t count : {std::uint64_t(0), std::uint64_t(1), std::uint64_t(700), all}) {
        CAPTURE(first);
        CAPTURE(count);
        const std::uint64_t end = std::min(first + count, all / of.parts);
        const std::vector<std::byte> expected(part.begin() + std::ptrdiff_t(first * element),
                                              part.begin() + std::ptrdiff_t(end * element));
        CHECK(files.read_part(name, of, first, count) == expected);
      }
  };
  check(scaled, "expert.weight", {130 * 129, 0, 1}, 4, 130 * 129);
  check(scaled, "expert.weight", {129, 1, 2}, 4, 130 * 129);
  check(scaled, "experts.gate_up_proj", {2 * 6 * 96, 0, 1}, 4, 2 * 6 * 96);
  check(scaled, "experts.gate_up_proj", {96, 1, 2}, 4, 2 * 6 * 96);
  check(scaled, "experts.gate_up_proj", {1, 2, 3}, 4, 2 * 6 * 96);
  check(long_runs, "x", {1'500'000, 1, 2}, 2, 3'000'000);
  check(long_runs, "x", {3, 1, 2}, 2, 3'000'000);
  CHECK_THROWS_WITH_AS((void)long_runs.read_part("x", {1, 0, 1}, 3'000'001),
                       "TensorFiles.read_part: first: expected at most 3000000, got 3000001", gatefold::ArgumentError);
}

TEST_CASE("TensorFiles: errors name the path and the tensor") {
  const TempDirectory temp;
  const auto path = temp.write(file("{" + entry("q", "F8_E4M3", "[4]", 0, 4) + "}", "abcd"), "eight.safetensors");
  const TensorFiles files(path);
  CHECK(refusal([&] { (void)files.read<float>("p"); }) == path.string() + ": tensor \"p\": missing");
  CHECK(refusal([&] { (void)files.read<float>("q"); }) ==
        path.string() +
            ": tensor \"q\": dtype: expected floating-point numbers of 16 bits or more, or integers, got F8_E4M3");
  CHECK(files.read_bytes("q").size() == 4);
  const auto mask =
      temp.write(file("{" + entry("m", "BOOL", "[2]", 0, 2) + "}", std::string("\1\0", 2)), "mask.safetensors");
  const std::string of_mask = mask.string() + ": tensor \"m\": dtype: expected ";
  CHECK(refusal([&] { (void)TensorFiles(mask).read<float>("m"); }) ==
        of_mask + "floating-point numbers of 16 bits or more, or integers, got BOOL");
  CHECK(refusal([&] { (void)TensorFiles(mask).read<Index>("m"); }) ==
        of_mask + "integers of at most 63 bits, got BOOL");
  CHECK(TensorFiles(mask).read_bytes("m") == std::vector<std::byte>{std::byte{1}, std::byte{0}});
  const auto other = temp.write(one, "one.safetensors");
  CHECK(refusal([&] { (void)TensorFiles(other).read<Index>("a"); }) ==
        other.string() + ": tensor \"a\": dtype: expected integers of at most 63 bits, got BF16");
  const auto cut = temp.write(one.substr(0, one.size() - 1), "cut.safetensors");
  CHECK(refusal([&] { TensorFiles{cut}; }).find("truncated") != std::string::npos);
}

TEST_CASE("TensorFiles: an index selects each tensor's file") {
  const TempDirectory temp;
  temp.write(one, "m-1.safetensors");
  temp.write(file("{" + entry("c", "I8", "[1]", 0, 1) + "}", "\7"), "m-2.safetensors");
  const auto index =
      temp.write(R"({"metadata": {"total_size": 7}, "weight_map": {"c": "m-2.safetensors", "b": "m-1.safetensors"}})",
                 "m.safetensors.index.json");
  const TensorFiles files(index);
  REQUIRE(files.tensors().size() == 2);
  CHECK(files.read<Index>("c") == std::vector<Index>{7});
  CHECK(files.read<Index>("b") == std::vector<Index>{1, 2, -1, 4});
  CHECK_FALSE(files.contains("a"));
}

TEST_CASE("TensorFiles: a wrong index throws") {
  const TempDirectory temp;
  temp.write(one, "m.safetensors");
  const auto said = [&](const std::string& text) {
    const auto path = temp.write(text, "index.json");
    const std::string message = refusal([&] { TensorFiles{path}; });
    REQUIRE(message.starts_with(temp.path.string()));
    return message.substr(temp.path.string().size() + 1);
  };
  for (const char* none : {"", "[", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": 3})"})
    CHECK(said(none) == "index.json: index: expected JSON with an object \"weight_map\"");
  for (const char* outside : {"../m.safetensors", "/etc/passwd", "a/m.safetensors", ""})
    CHECK(said(R"({"weight_map": {"b": ")" + std::string(outside) + "\"}}") ==
          "index.json: tensor \"b\": index: expected the name of a file in the folder of the index, got \"\\\"" +
              std::string(outside) + "\\\"\"");
  CHECK(said(R"({"weight_map": {"b": 7}})") ==
        "index.json: tensor \"b\": index: expected the name of a file in the folder of the index, got \"7\"");
  CHECK(said(R"({"weight_map": {"z": "m.safetensors"}})") == "index.json: tensor \"z\": index: expected in " +
                                                                 (temp.path / "m.safetensors").string() +
                                                                 ", which does not contain it");
  CHECK(said(R"({"weight_map": {"b": "n.safetensors"}})") == "n.safetensors: cannot open: No such file or directory");
  CHECK(said(R"({"weight_map": {"b": ".."}})").find("cannot open: not a regular file") != std::string::npos);
}

TEST_CASE("TensorFiles: weights with scales are read as PyTorch reads them") {
  const std::filesystem::path folder = std::filesystem::path(GATEFOLD_TEST_DIR) / "golden/block_scales";
  const TensorFiles files(folder / "scaled.safetensors");
  CHECK_FALSE(files.contains("expert.weight_scale_inv"));
  CHECK_FALSE(files.contains("experts.gate_up_proj_blocks"));
  REQUIRE(files.tensors().size() == 4);
  CHECK(files.info("expert.weight").dtype == "F32");
  CHECK(files.info("expert.weight").shape == std::vector<std::uint64_t>{1, 130, 129});
  CHECK(files.read<float>("expert.weight") == files.read<float>("expected.fp8"));
  CHECK(files.info("experts.gate_up_proj").shape == std::vector<std::uint64_t>{2, 6, 96});
  CHECK(files.read<double>("experts.gate_up_proj") == files.read<double>("expected.mxfp4"));
  const auto part = [&](const char* name) { return files.read_part(name, {96, 1, 2}); };
  CHECK(part("experts.gate_up_proj") == part("expected.mxfp4"));
}

TEST_CASE("TensorFiles: scales that do not fit are refused") {
  const TempDirectory temp;
  const auto message = [&](const std::string& header, std::size_t bytes) {
    const auto path = temp.write(file(header, std::string(bytes, '\0')), "bad.safetensors");
    return refusal([&] { TensorFiles files(path); }).substr(path.string().size() + 2);
  };
  CHECK(message("{" + entry("w", "F8_E4M3", "[2,3]", 0, 6) + "," + entry("w_scale_inv", "F32", "[2,1]", 6, 14) + "}",
                14) == "tensor \"w_scale_inv\": scales: expected [1, 1], got [2, 1] of F32");
  CHECK(message("{" + entry("w_blocks", "U8", "[2,16]", 0, 32) + "," + entry("w_scales", "U8", "[3]", 32, 35) + "}",
                35) == "tensor \"w_scales\": scales: expected [2] of U8, got [3] of U8");
  CHECK(message("{" + entry("w_blocks", "U8", "[2,8]", 0, 16) + "," + entry("w_scales", "U8", "[2]", 16, 18) + "}",
                18) == "tensor \"w_blocks\": MXFP4: expected blocks of 16 bytes, got [2, 8]");
}
