#include "gatefold/train/frozen_tensors.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/train/frozen_file.hpp"
#include "gatefold/train/load_frozen_decoder.hpp"
#include "support/decoder_folders.hpp"
#include "support/frozen_files.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr io::SaveFrozenOptions mappable{.mappable = true};
constexpr Weights all_forms[] = {Weights::unchanged, Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4};

/// The number of mappings of a file in this process, and whether an address is in one of them. On systems without a
/// list of mappings, mappings_of returns one mapping that contains every address.
struct Mappings {
  int count = 0;
  bool contains = false;
};
Mappings mappings_of(const std::filesystem::path& path, const void* address = nullptr) {
  Mappings found;
#if defined(__linux__)
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path.string()) == line.npos) continue;
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    ++found.count;
    found.contains = found.contains || (begin <= at && at < end);
  }
#else
  found = {1, true};
#endif
  return found;
}
/// Returns the names of the tensors of a pack that are not in the mapping of a file. A tensor without elements has the
/// address of its packed copy.
template <class P>
std::string outside(const std::filesystem::path& path, const P& params) {
  std::string names;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (t.size() > 0 && !mappings_of(path, t.data()).contains) names += name.str() + ' ';
      },
      params);
  return names;
}

template <class B>
void check_mapped(const FreezeOptions& options) {
  const TempDirectory folder;
  const auto path = folder.path / "mapped", plain = folder.path / "plain", again = folder.path / "again";
  typename B::Context ctx(2);
  const auto frozen = frozen_branch<B>(ctx, options);
  const auto expected = outputs_of_file<B>(ctx, frozen);
  io::save_frozen(path, ctx, frozen, {{"made", "here"}}, mappable);
  io::save_frozen(plain, ctx, frozen);
  const auto loaded = io::load_frozen(path, ctx, file_branch());
  CAPTURE(int(options.weights));
  CHECK(io::read_metadata(path).at("made") == "here");
  CHECK(outside(path, loaded.params) == "");
  CHECK(mappings_of(plain).count == (mappings_of(path).contains ? 1 : 0));
  CHECK(!has_elements(loaded.params.expert.up.data()));
  CHECK(outputs_of_file<B>(ctx, loaded) == expected);
  CHECK(outputs_of_file<B>(ctx, io::load_frozen(plain, ctx, file_branch())) == expected);
  // Loaded parameters can be saved again, to a mappable file and to an ordinary one.
  io::save_frozen(again, ctx, loaded, {{"made", "here"}}, mappable);
  CHECK(read_bytes(again) == read_bytes(path));
  io::save_frozen(again, ctx, loaded);
  CHECK(outputs_of_file<B>(ctx, io::load_frozen(again, ctx, file_branch())) == expected);
  if (is_quantised(options.weights) && options.except.empty()) CHECK(read_bytes(again) == read_bytes(plain));
}

/// Returns the bytes of the weights `from` in panels of another width. Copies each column of each unit. In a unit, a
/// quantised column has a scale of two bytes and numbers in groups of four bytes. Other columns have one or two
/// elements.
std::string repacked(const Panels& from, Index width) {
  Panels to = from;
  to.width = width;
  std::string bytes(static_cast<std::size_t>(to.bytes()), '\0');
  const Index in_block = Panels::block / from.rows_of_unit(), column = from.bytes_of_column();
  const auto unit_at = [&](const Panels& p, Index e, Index u, Index j) {
    const Index first = u / in_block * in_block, length = std::min(in_block, p.units - first);
    return ((e * p.units + first) * p.panels() + j / p.width * length + u - first) * p.width * column;
  };
  for (Index e = 0; e < from.experts; ++e)
    for (Index u = 0; u < from.units; ++u)
      for (Index j = 0; j < from.columns; ++j) {
        const auto copy = [&](Index begin, Index size) {
          const auto at = [&](const Panels& p) { return unit_at(p, e, u, j) + begin * p.width + j % p.width * size; };
          std::memcpy(bytes.data() + at(to), from.data + at(from), static_cast<std::size_t>(size));
        };
        if (!is_quantised(from.form)) {
          copy(0, column);
          continue;
        }
        copy(0, 2);
        for (Index quad = 2; quad < column; quad += 4) copy(quad, 4);
      }
  return bytes;
}
/// Writes a mappable file of the branch again, with panels of another width.
void write_width(const std::filesystem::path& path, Index width) {
  const std::string text = read_bytes(path);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  const auto header = nlohmann::json::parse(text.substr(8, length));
  std::vector<std::pair<std::size_t, std::string>> in_order;
  for (const auto& [name, tensor] : header.items())
    if (name != "__metadata__") in_order.emplace_back(tensor["data_offsets"][0].get<std::size_t>(), name);
  std::sort(in_order.begin(), in_order.end());
  std::string elements;
  nlohmann::json changed;
  for (const auto& [begin, name] : in_order) {
    auto tensor = header[name];
    std::string bytes = text.substr(8 + length + begin, tensor["data_offsets"][1].get<std::size_t>() - begin);
    if (name.ends_with(".panels")) {
      const bool down = name.find("down") != name.npos;
      Panels panels{Weights::unchanged, tensor["shape"].size() == 4, 3, down ? 70 : 37, down ? 37 : 70};
      for (const Weights form : all_forms)
        if (name.ends_with(io::frozen_file::suffix(form) + std::string(".panels"))) panels.form = form;
      panels.width = tensor["shape"][2].get<Index>() / (is_quantised(panels.form) ? panels.bytes_of_column() : 1);
      panels.units = tensor["shape"][1].get<Index>() / panels.panels();
      panels.data = reinterpret_cast<const std::byte*>(bytes.data());
      const std::string other = repacked(panels, width);
      panels.width = width;
      tensor["shape"] = panels.shape();
      bytes = other;
    }
    tensor["data_offsets"] = {elements.size(), elements.size() + bytes.size()};
    changed[name] = tensor;
    elements += bytes;
  }
  std::string json = changed.dump();
  json.append((64 - (8 + json.size()) % 64) % 64, ' ');
  const std::uint64_t size = json.size();
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(&size), 8) << json << elements;
}

/// Returns the error of loading a changed mappable file of the branch.
template <class F>
std::string error_of_mapped(Weights form, const F& change) {
  return error_of_changed(
      [&](const auto& path, auto& ctx) {
        io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = form}), {}, mappable);
      },
      [](const auto& path, auto& ctx) { io::load_frozen(path, ctx, file_branch()); }, change);
}
/// Like changed_parts, but pads the header to a multiple of 64 bytes, and then adds `more` bytes to it.
template <class F>
auto changed_mapped(const F& change, std::size_t more = 0) {
  return [=](std::string& text) {
    changed_parts(change)(text);
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof(length));
    const std::size_t padding = (64 - (8 + length) % 64) % 64 + more;
    text.insert(8 + length, std::string(padding, ' '));
    length += padding;
    std::memcpy(text.data(), &length, sizeof(length));
  };
}

}  // namespace

TEST_CASE_TEMPLATE("load_frozen: maps a file without changing results", B, Cpu, CpuBf16) {
  for (const Weights form : all_forms) check_mapped<B>({.weights = form});
  for (const char* other : {"**.down", "**.up", "**.gate"})
    for (const Weights form : {Weights::unchanged, Weights::bfloat16, Weights::mxfp4})
      if (form == Weights::mxfp4 || std::string(other) == "**.down")
        check_mapped<B>({.weights = Weights::int4, .except = {{other, form}}});
}

TEST_CASE_TEMPLATE("load_frozen: maps a language model without changing results", B, Cpu, CpuBf16) {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  for (const bool tied : {false, true})
    for (const FreezeOptions& options : options_of_layers()) {
      typename B::Context ctx(2);
      const auto frozen = frozen_layers<B>(ctx, tied, options);
      io::save_frozen(path, ctx, frozen, {}, mappable);
      const auto loaded = io::load_frozen(path, ctx, file_layers(), file_loss(tied));
      CAPTURE(tied);
      CAPTURE(int(options.weights));
      CHECK(outside(path, loaded.model.params) == "");
      CHECK(outside(path, loaded.loss) == "");
      CHECK(outputs_and_logits<B>(ctx, file_layers(), file_loss(tied), loaded) ==
            outputs_and_logits<B>(ctx, file_layers(), file_loss(tied), frozen));
    }
}

TEST_CASE_TEMPLATE("load_frozen: maps a decoder without changing results", B, Cpu, CpuBf16) {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  for (const Weights form : {Weights::unchanged, Weights::bfloat16, Weights::int8}) {
    typename B::Context ctx(1);
    const auto config = io::read_decoder_config(decoder_folders() / "qwen2_moe");
    with_decoder(config.sizes, [&]<class M>(const M& model) {
      const StreamedCrossEntropy loss = config.sizes.loss();
      const auto frozen = io::load_frozen_decoder(decoder_folders() / "qwen2_moe", ctx, config, model,
                                                  {.weights = form, .except = {{"**.shared", Weights::bfloat16}}});
      io::save_frozen(path, ctx, frozen, {}, mappable);
      const auto loaded = io::load_frozen(path, ctx, model, loss);
      const auto extra = extra_of<Extra<M, float, B>>(Segment<float, B>{.length = 3});
      CHECK(outside(path, loaded.model.params) == "");
      CHECK(outside(path, loaded.loss) == "");
      CHECK(outputs_and_logits<B>(ctx, model, loss, loaded, extra) ==
            outputs_and_logits<B>(ctx, model, loss, frozen, extra));
    });
  }
}

TEST_CASE("load_frozen: the mapping lasts as long as the loaded weights") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context ctx(1);
  const auto frozen = frozen_branch<Cpu>(ctx, {.weights = Weights::int8});
  const auto expected = outputs_of_file<Cpu>(ctx, frozen);
  io::save_frozen(path, ctx, frozen, {}, mappable);
  auto first = std::optional(io::load_frozen(path, ctx, file_branch()));
  auto second = std::optional(io::load_frozen(path, ctx, file_branch()));
  // A save replaces the file by a rename. The mapped file is still the old one.
  io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int4}), {}, mappable);
  CHECK(outputs_of_file<Cpu>(ctx, *first) == expected);
  std::filesystem::remove(path);
  auto moved = std::optional(std::move(*first));
  first.reset();
  CHECK(outputs_of_file<Cpu>(ctx, *moved) == expected);
  CHECK(outputs_of_file<Cpu>(ctx, *second) == expected);
  second.reset();
  CHECK(outputs_of_file<Cpu>(ctx, *moved) == expected);
  CHECK(mappings_of(path).count == 1);
  moved.reset();
#if defined(__linux__)
  CHECK(mappings_of(path).count == 0);
#endif
}

TEST_CASE("load_frozen: writes to mapped elements do not change the file") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context ctx(1);
  const auto model = file_branch();
  const auto frozen = frozen_branch<Cpu>(ctx, {.weights = Weights::int8});
  // [snippet mappable]
  io::save_frozen(path, ctx, frozen, {}, {.mappable = true});
  const auto loaded = io::load_frozen(path, ctx, model);  // maps the file: no copy, pages are read on first use
  // [/snippet]
  const std::string before = read_bytes(path);
  auto written = io::load_frozen(path, ctx, model);
  fill(ctx, written.params.expert.up_bias, 2.0F);
  CHECK(written.params.expert.up_bias(2, 69) == 2);
  CHECK(loaded.params.expert.up_bias(2, 69) == frozen.params.expert.up_bias(2, 69));
  CHECK(read_bytes(path) == before);
}

TEST_CASE_TEMPLATE("load_frozen: panels of another width are packed again", B, Cpu, CpuBf16) {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  typename B::Context ctx(2);
  for (const Weights form : all_forms)
    for (const Index width : {Index(2), Index(8), Index(16), Index(32), Index(64)}) {
      const auto frozen = frozen_branch<B>(ctx, {.weights = form});
      io::save_frozen(path, ctx, frozen, {}, mappable);
      write_width(path, width);
      const auto loaded = io::load_frozen(path, ctx, file_branch());
      CAPTURE(int(form));
      CAPTURE(width);
      CHECK(outputs_of_file<B>(ctx, loaded) == outputs_of_file<B>(ctx, frozen));
      const bool same = width == cpu::Tile<float>::columns;
      CHECK(!has_elements(loaded.params.expert.up.data()));
#if defined(__linux__)
      CHECK(mappings_of(path, loaded.params.expert.up.data()).contains == same);
#endif
    }
}

TEST_CASE("load_frozen: Cpu and CpuBf16 read each other's mappable files") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context cpu(2);
  CpuBf16::Context rounding(2);
  for (const bool tied : {false, true})
    for (const Weights form : all_forms) {
      CAPTURE(int(form));
      CAPTURE(tied);
      const auto logits = [&]<class B>(typename B::Context& ctx, const auto& frozen) {
        return outputs_and_logits<B>(ctx, file_layers(), file_loss(tied), frozen);
      };
      const FreezeOptions options{.weights = form};
      io::save_frozen(path, cpu, frozen_layers<Cpu>(cpu, tied, options), {}, mappable);
      CHECK(logits.operator()<CpuBf16>(rounding, io::load_frozen(path, rounding, file_layers(), file_loss(tied))) ==
            logits.operator()<CpuBf16>(rounding, frozen_layers<CpuBf16>(rounding, tied, options)));
      // CpuBf16 has rounded the weights, except those of the output layer, to bfloat16 or fewer bits.
      io::save_frozen(path, rounding, frozen_layers<CpuBf16>(rounding, tied, options), {}, mappable);
      FreezeOptions rounded = options;
      if (form == Weights::unchanged)
        rounded = {.weights = Weights::bfloat16, .except = {{"loss.weight", Weights::unchanged}}};
      CHECK(logits.operator()<Cpu>(cpu, io::load_frozen(path, cpu, file_layers(), file_loss(tied))) ==
            logits.operator()<Cpu>(cpu, frozen_layers<Cpu>(cpu, tied, rounded)));
    }
}

TEST_CASE("save_frozen: a mappable file in parts is mapped") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context ctx(1);
  const auto frozen = frozen_branch<Cpu>(ctx, {.weights = Weights::int8});
  io::save_frozen(path, ctx, frozen, {}, {.mappable = true, .max_file_bytes = 12'000});
  CHECK(folder.entries() > 2);
  const auto loaded = io::load_frozen(path, ctx, file_branch());
  CHECK(outside(path, loaded.params) == "");
  CHECK(outputs_of_file<Cpu>(ctx, loaded) == outputs_of_file<Cpu>(ctx, frozen));
}

TEST_CASE("save_frozen: a mappable file has expected names, shapes and alignment") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  constexpr std::uint64_t width = cpu::Tile<float>::columns;
  const auto panels = [&](std::uint64_t columns) { return (columns + width - 1) / width; };
  using Shape = std::vector<std::uint64_t>;
  Cpu::Context ctx(1);
  io::save_frozen(
      path, ctx,
      frozen_layers<Cpu>(
          ctx, false,
          {.weights = Weights::int8,
           .except = {{"**.down", Weights::int4}, {"**.gate", Weights::bfloat16}, {"**.up", Weights::unchanged}}}),
      {}, mappable);
  const io::TensorFiles files(path);
  const auto is = [&](const std::string& name, const char* dtype, const Shape& shape) {
    CAPTURE(name);
    CHECK(files.info(name).dtype == dtype);
    CHECK(files.info(name).shape == shape);
    const auto address = reinterpret_cast<std::uintptr_t>(files.map(name).get());
    if (name.ends_with(".panels")) CHECK(address % (2 * width) == 0);
  };
  is("model.layers.1.expert.down.int4.panels", "U8", {3, 3 * panels(37), 18 * width});
  is("model.layers.1.expert.gate.bf16.panels", "BF16", {3, 37 * panels(70), width});
  is("model.layers.1.expert.up.f32.panels", "F32", {3, 37 * panels(70), width});
  is("model.layers.1.expert.up_bias", "F32", {3, 70});
  is("loss.weight.int8.panels", "U8", {1, 2 * panels(45), 34 * width});
  CHECK(!files.contains("loss.weight"));
}

TEST_CASE("load_frozen: errors for damaged mappable files name the tensor") {
  using nlohmann::json;
  for (const Weights form : all_forms) {
    CAPTURE(int(form));
    const std::string up = std::string("expert.up") + io::frozen_file::suffix(form) + ".panels",
                      in_quotes = "tensor \"" + up + "\": ", expected = in_quotes + "expected panels of [3, 37, 70]";
    const auto error_of_header = [&](const auto& change, std::size_t more = 0) {
      return error_of_mapped(form, changed_mapped([&](json& header, std::string&) { change(header); }, more));
    };
    const auto begins = [](const std::string& text, const std::string& begin) {
      return text.substr(0, begin.size()) == begin;
    };
    CHECK(error_of_header([](json&) {}) == "no error");

    // Wrong shapes with the right number of elements.
    const auto error_of_shape = [&](const auto& change) {
      return error_of_header([&](json& header) { change(header[up]["shape"]); });
    };
    CHECK(begins(error_of_shape([](json& shape) { std::swap(shape[0], shape[1]); }), expected));
    CHECK(begins(error_of_shape([](json& shape) { std::swap(shape[1], shape[2]); }), expected));
    CHECK(begins(error_of_shape([](json& shape) { shape.push_back(1); }), expected));
    CHECK(begins(error_of_shape([](json& shape) {
                   shape = {shape[0].get<Index>() * shape[1].get<Index>(), shape[2]};
                 }),
                 expected));
    CHECK(begins(error_of_shape([](json& shape) {
                   shape = {3, 1, shape[1].get<Index>() * shape[2].get<Index>()};
                 }),
                 expected));
    // A shape with pairs of rows, which only bfloat16 has.
    if (form != Weights::bfloat16)
      CHECK(begins(error_of_shape([](json& shape) {
                     shape = {shape[0], shape[1], shape[2].get<Index>() / 2, 2};
                   }),
                   expected));
    // A shape without elements, and with an extent that does not fit into 63 bits.
    CHECK(begins(
        error_of_header([&](json& header) {
          header[up + "x"] = header[up];
          header[up] = {{"dtype", header[up]["dtype"]}, {"shape", {3, 0, ~std::uint64_t(0)}}, {"data_offsets", {0, 0}}};
        }),
        expected));

    // A wrong type, wrong names, and two forms of one tensor.
    CHECK(begins(
        error_of_header([&](json& header) { header[up]["dtype"] = form == Weights::bfloat16 ? "F16" : "I32"; }),
        form == Weights::unchanged || form == Weights::bfloat16 ? in_quotes + "dtype: expected " : "offset 8: "));
    CHECK(error_of_header([&](json& header) {
            header["expert.up.q4_0.panels"] = header[up];
            header.erase(up);
          }) == "tensor \"expert.up\": missing");
    CHECK(error_of_header([&](json& header) {
            header["expert.more.panels"] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
          }) == "tensor \"expert.more.panels\": unexpected");
    for (const std::string other : {".int8", ".int4", "", ".f32.panels", ".bf16.panels", ".int8.panels"}) {
      if ("expert.up" + other == up) continue;
      CHECK(error_of_header([&](json& header) {
              header["expert.up" + other] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
            }).find("another form of the same tensor") != std::string::npos);
    }

    // Elements at an offset that is not aligned, and files that are too short or too long.
    CHECK(error_of_header([](json&) {}, 8)
              .find("bytes, got 8 bytes after a multiple; write the file again with save_frozen") != std::string::npos);
    for (const std::size_t left : {std::size_t(0), std::size_t(1), std::size_t(5000)})
      CHECK(error_of_mapped(form, changed_mapped([&](json&, std::string& elements) { elements.resize(left); }))
                .find("truncated") != std::string::npos);
    CHECK(error_of_mapped(form, changed_mapped([](json&, std::string& elements) { elements += '\0'; }))
              .find("found more bytes") != std::string::npos);
  }
}

/// Returns a function that changes a mappable file: each float of a tensor becomes the FP8 number 1 with the scale 0.5.
auto with_scales(const std::string& name) {
  using nlohmann::json;
  return changed_mapped([=](json& header, std::string& elements) {
    const std::size_t begin = header[name]["data_offsets"][0], end = header[name]["data_offsets"][1];
    const json shape = header[name]["shape"];
    header.erase(name);
    elements.erase(begin, end - begin);
    for (auto& [key, tensor] : header.items())
      if (key != "__metadata__" && tensor["data_offsets"][0] >= end)
        for (auto& offset : tensor["data_offsets"]) offset = offset.get<std::size_t>() - (end - begin);
    const auto append = [&](const std::string& tensor, const char* type, const json& of, const std::string& bytes) {
      header[tensor] = {
          {"dtype", type}, {"shape", of}, {"data_offsets", {elements.size(), elements.size() + bytes.size()}}};
      elements += bytes;
    };
    const float scale = 0.5F;
    append(name, "F8_E4M3", shape, std::string((end - begin) / sizeof(float), '\x38'));
    append(name + "_scale_inv", "F32", {1, 1}, {reinterpret_cast<const char*>(&scale), sizeof(scale)});
  });
}

TEST_CASE("load_frozen: tensors with scales are read, not mapped") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context ctx(1);
  io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int8}), {}, mappable);
  std::string text = read_bytes(path);
  with_scales("gate.scores.weight")(text);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
  const auto loaded = io::load_frozen(path, ctx, file_branch());
  const auto& weight = loaded.params.gate.scores.weight;
  CHECK(std::count(weight.data(), weight.data() + weight.size(), 0.5F) == weight.size());
  CHECK(outside(path, loaded.params) == "gate.scores.weight ");
}

TEST_CASE("load_frozen: a damaged mappable file leaves loaded weights unchanged") {
  const TempDirectory folder;
  const auto path = folder.path / "mapped";
  Cpu::Context ctx(1);
  io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int4}), {}, mappable);
  auto loaded = io::load_frozen(path, ctx, file_branch());
  const auto before = outputs_of_file<Cpu>(ctx, loaded);
  std::string text = read_bytes(path);
  std::memcpy(text.data() + text.find("expert.down_bias"), "expert.dawn", 11);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
  CHECK_THROWS_AS(loaded = io::load_frozen(path, ctx, file_branch()), FileError);
  CHECK(outputs_of_file<Cpu>(ctx, loaded) == before);
}

TEST_CASE("load_frozen: corrupt mappable files throw or load, but never crash") {
  std::mt19937 random(1);
  int errors = 0;
  Cpu::Context ctx(1);
  for (int i = 0; i < 200; ++i) {
    const Weights form = all_forms[i % 5];
    errors += error_of_changed(
                  [&](const auto& path, auto& of_file) {
                    io::save_frozen(path, of_file, frozen_branch<Cpu>(of_file, {.weights = form}), {}, mappable);
                  },
                  [&](const auto& path, auto& of_file) {
                    outputs_of_file<Cpu>(ctx, io::load_frozen(path, of_file, file_branch()));
                  },
                  [&](std::string& text) {
                    std::uint64_t header = 0;
                    std::memcpy(&header, text.data(), sizeof(header));
                    // Changes bytes anywhere in half of the files, and bytes of the header in the others.
                    for (int n = 0; n < 3; ++n)
                      text[random() % (i % 2 ? text.size() : 8 + header)] = static_cast<char>(random());
                    if (i % 10 == 0) text.resize(random() % text.size());
                  }) != "no error";
  }
  CHECK(errors > 60);
}
