#include "gatefold/train/save_decoder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/load_frozen_decoder.hpp"
#include "support/decoder_folders.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;
using io::TensorFiles;

namespace {

const std::filesystem::path folders = decoder_folders();

/// Reads the decoder of a folder, calls change(params), and saves it to another folder.
template <class T = float, class F>
void resave(const std::filesystem::path& from, const std::filesystem::path& to, const F& change) {
  Cpu::Context ctx(1);
  const auto config = io::read_decoder_config(from);
  with_decoder(config.sizes, [&](const auto& model) {
    auto params = io::load_decoder<T>(from, ctx, config, model);
    change(params);
    io::save_decoder(to, ctx, config, params, from);
  });
}
const auto nothing = [](auto&) {};

/// Checks that two folders have the same files, except the results of PyTorch in golden folders.
void expect_same(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::ptrdiff_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    const auto name = entry.path().filename();
    if (name == "expected.safetensors" || name == "adamw.safetensors") continue;
    CAPTURE(name.string());
    ++files;
    CHECK(read_bytes(entry.path()) == read_bytes(b / name));
  }
  CHECK(files >= 2);
  CHECK(files == std::distance(std::filesystem::directory_iterator(b), {}));
}

/// A tensor for a file.
struct Made {
  std::string name, dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
/// Writes a safetensors file.
void write_file(const std::filesystem::path& path, const std::vector<Made>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt","note":"as it was"})", elements;
  for (const Made& t : tensors) {
    header += ",\"" + t.name + R"(":{"dtype":")" + t.dtype + R"(","shape":)" + io::safetensors::shape_text(t.shape) +
              R"(,"data_offsets":[)" + std::to_string(elements.size()) + "," +
              std::to_string(elements.size() + t.bytes.size()) + "]}";
    elements += t.bytes;
  }
  header += "}   ";
  std::string text(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  std::ofstream(path, std::ios::binary) << text << header << elements;
}

std::uint32_t random_bits(std::uint32_t& state) { return (state = state * 1664525 + 1013904223) >> 8; }
template <class V>
void append(std::string& bytes, V value) {
  char raw[sizeof(V)];
  std::memcpy(raw, &value, sizeof(V));
  bytes.append(raw, sizeof(V));
}

/// Writes a decoder whose matrices are FP8 with random bytes and scales, in two parts with an index. Sizes are no
/// multiples of 128. Some scales precede their matrices, and some are in the other part.
void make_fp8(const std::filesystem::path& to, const std::string& scale_dtype) {
  std::ofstream(to / "config.json") << R"({"model_type": "mixtral", "vocab_size": 11, "hidden_size": 136,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3,
    "num_experts_per_tok": 2, "intermediate_size": 131, "tie_word_embeddings": true})";
  const auto config = io::read_decoder_config(to);
  std::vector<Made> parts[2];
  std::uint32_t state = 17;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) count *= extent;
    std::vector<Made>& part = parts[random_bits(state) % 2];
    if (name.find("proj") == name.npos && name.find("experts") == name.npos) {
      Made plain{name, "BF16", shape, ""};
      for (std::uint64_t i = 0; i < count; ++i)
        append(plain.bytes, Bfloat16::from(float(random_bits(state) % 2001) / 1000 - 1));
      return part.push_back(plain);
    }
    Made numbers{name, "F8_E4M3", shape, ""}, scales{name + "_scale_inv", scale_dtype, shape, ""};
    for (std::uint64_t i = 0; i < count; ++i) append(numbers.bytes, static_cast<char>(random_bits(state) % 251));
    for (std::uint64_t& extent : scales.shape) extent = (extent + 127) / 128;
    for (std::uint64_t i = 0; i < scales.shape[0] * scales.shape[1]; ++i) {
      const float scale = float(1 + random_bits(state) % 100000) * 1e-7f;
      if (scale_dtype == "F32")
        append(scales.bytes, scale);
      else
        append(scales.bytes, Bfloat16::from(scale));
    }
    if (random_bits(state) % 2 == 0) {
      part.push_back(scales);
      parts[0].push_back(numbers);
    } else {
      parts[1].push_back(numbers);
      part.push_back(scales);
    }
  };
  with_decoder(config.sizes, [&](const auto& model) {
    Shapes::Context shapes;
    const ModelAndLoss<Params<std::remove_cvref_t<decltype(model)>, float, Shapes>,
                       Params<StreamedCrossEntropy, float, Shapes>>
        params{init_params<float, Shapes>(model, shapes, Seed{}),
               init_params<float, Shapes>(config.sizes.loss(), shapes, Seed{})};
    io::tensor_map::visit("test", io::decoder_map(config), params, [&](const auto&, const auto& pieces) {
      for (const auto& piece : pieces) add(piece.name, piece.shape);
    });
  });
  parts[0].push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, "inv_freq"});
  const auto embedding = [&]() -> Made {
    for (const auto& part : parts)
      for (const Made& tensor : part)
        if (tensor.name == "model.embed_tokens.weight") return tensor;
    throw Error("no embedding");
  };
  parts[1].push_back({"lm_head.weight", "BF16", {11, 136}, embedding().bytes});  // the output layer is tied
  parts[1].push_back({"model.of_another_model", "U8", {3}, "abc"});              // not in the index
  std::string index;
  for (int p = 0; p < 2; ++p) {
    const std::string file = "model-0000" + std::to_string(p + 1) + "-of-00002.safetensors";
    write_file(to / file, parts[p]);
    for (const Made& tensor : parts[p])
      if (tensor.name != "model.of_another_model")
        index += (index.empty() ? "\"" : ",\n  \"") + tensor.name + "\": \"" + file + "\"";
  }
  std::ofstream(to / "model.safetensors.index.json") << "{\"metadata\": {},\n \"weight_map\": {" << index << "}}\n";
}

}  // namespace

TEST_CASE("save_decoder: unchanged parameters reproduce the bytes of the folder") {
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const TempDirectory temp;
    resave(folders / name, temp.path / "new", nothing);
    expect_same(folders / name, temp.path / "new");
    resave<double>(folders / name, temp.path / "new", nothing);  // replaces the folder
    expect_same(folders / name, temp.path / "new");
    CHECK(temp.entries() == 1);
  }
}

TEST_CASE("save_decoder: keeps stored types, file parts and the tokenizer") {
  Cpu::Context ctx(1);
  for (const auto stored : {io::Stored::bf16, io::Stored::f16, io::Stored::f64})
    for (const char* name : {"mixtral", "deepseek_v3", "gpt_oss"}) {
      const TempDirectory from, temp;
      std::filesystem::copy_file(folders / name / "config.json", from.path / "config.json");
      from.write("tokens", "tokenizer.json");
      const auto config = io::read_decoder_config(from.path);
      with_decoder(config.sizes, [&](const auto& model) {
        const auto params = io::load_decoder(folders / name, ctx, config, model);
        io::save(from.path / "model.safetensors", ctx, {{"format", "pt"}}, io::decoder_map(config), params, stored);
      });
      resave(from.path, temp.path / "new", nothing);
      expect_same(from.path, temp.path / "new");
      // The parts are written here, because io::save would give them other names.
      const TempDirectory parts;
      std::filesystem::copy_file(folders / name / "config.json", parts.path / "config.json");
      std::vector<Made> a, b;
      const TensorFiles files(from.path / "model.safetensors");
      std::string index;
      for (const auto& tensor : files.tensors()) {
        const std::vector<std::byte> bytes = files.read_bytes(tensor.name);
        const bool first = a.size() <= b.size();
        (first ? a : b)
            .push_back({tensor.name, std::string(tensor.dtype), tensor.shape,
                        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
        index +=
            (index.empty() ? "\"" : ",\"") + tensor.name + (first ? "\":\"a.safetensors\"" : "\":\"b.safetensors\"");
      }
      write_file(parts.path / "a.safetensors", a);
      write_file(parts.path / "b.safetensors", b);
      parts.write("{\"weight_map\":{" + index + "}}", "model.safetensors.index.json");
      resave(parts.path, temp.path / "parts", nothing);
      expect_same(parts.path, temp.path / "parts");
      // Folders, and weights in other formats, are not copied.
      from.write("old weights", "pytorch_model.bin");
      std::filesystem::create_directory(from.path / "original");
      resave(from.path, temp.path / "new", nothing);
      CHECK(std::distance(std::filesystem::directory_iterator(temp.path / "new"), {}) == 3);
    }
}

TEST_CASE("save_decoder: unchanged FP8 weights keep their bytes and scales") {
  for (const char* dtype : {"F32", "BF16"}) {
    const TempDirectory from, temp;
    make_fp8(from.path, dtype);
    resave(from.path, temp.path / "a", nothing);
    const TensorFiles files(temp.path / "a/model.safetensors");
    CHECK(files.read_bytes("lm_head.weight") == files.read_bytes("model.embed_tokens.weight"));
    CHECK(files.read_bytes("model.layers.0.self_attn.rotary_emb.inv_freq").size() == 8);
    resave(temp.path / "a", temp.path / "b", nothing);
    expect_same(temp.path / "a", temp.path / "b");
    const TensorFiles before(from.path / "model.safetensors");
    std::size_t scaled = 0;
    for (const auto& tensor : before.tensors()) {
      CAPTURE(tensor.name);
      if (!before.has_scales(tensor.name)) continue;
      ++scaled;
      CHECK(files.read_encoded(tensor.name).bytes == before.read_encoded(tensor.name).bytes);
      CHECK(files.read_encoded(tensor.name).scale_bytes == before.read_encoded(tensor.name).scale_bytes);
    }
    CHECK(scaled == 4 + 3 * 3);
    CHECK(read_bytes(temp.path / "a/model-00002-of-00002.safetensors").ends_with("abc"));
  }
}

TEST_CASE("save_decoder: rounds changed FP8 and MXFP4 values to nearest") {
  for (const bool fp8 : {true, false}) {
    CAPTURE(fp8);
    const TempDirectory from, temp;
    if (fp8)
      make_fp8(from.path, "BF16");
    else
      for (const char* file : {"config.json", "model.safetensors"})
        std::filesystem::copy_file(folders / "gpt_oss_mxfp4" / file, from.path / file);
    Cpu::Context ctx(1);
    const auto config = io::read_decoder_config(from.path);
    with_decoder(config.sizes, [&](const auto& model) {
      auto params = io::load_decoder(from.path, ctx, config, model);
      for_each_tensor(
          [](const Name& name, auto& t) {
            const std::string text = name.str();
            if (text.find("expert") == text.npos || text.find("bias") != text.npos) return;
            for (Index i = 0; i < t.size(); i += 7) t.data()[i] *= 1 + float(i % 5) / 4;
          },
          params);
      io::save_decoder(temp.path / "new", ctx, config, params, from.path);
      const auto again = io::load_decoder(temp.path / "new", ctx, config, model);
      double worst = 0;
      bool changed = false;
      for_each_tensor(
          [&](const Name& name, const auto& wanted, const auto& got) {
            CAPTURE(name.str());
            float largest = 0;
            for (Index i = 0; i < wanted.size(); ++i) largest = std::max(largest, std::abs(float(wanted.data()[i])));
            for (Index i = 0; i < wanted.size(); ++i) {
              const double w = double(wanted.data()[i]), error = std::abs(double(got.data()[i]) - w);
              changed = changed || error > 0;
              // Half a step of e4m3 is at most 2^-4 of a number. Half a step of MXFP4 is less than a third of the
              // largest number.
              worst = std::max(worst, error / (fp8 ? std::abs(w) / 16 * (1 + 1e-6) + largest / 448 / 512 * 2
                                                   : double(largest) / 6 * 2));
            }
          },
          params, again);
      CHECK(changed);
      CHECK(worst <= 1);
      // To load a saved decoder and save it again changes no byte.
      io::save_decoder(temp.path / "again", ctx, config, again, temp.path / "new");
    });
    expect_same(temp.path / "new", temp.path / "again");
  }
}

TEST_CASE("save_decoder: errors leave the folders unchanged") {
  const TempDirectory from, temp;
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(folders / "mixtral" / file, from.path / file);
  const std::filesystem::path to = temp.path / "new";
  const auto error = [&](const std::filesystem::path& target, const auto& change) -> std::string {
    try {
      resave(from.path, target, change);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error(from.path, nothing) ==
        "io::save_decoder: to: expected another folder than the source, got " + from.path.string());
  CHECK(error(to, [&](auto&) { std::filesystem::remove(from.path / "model.safetensors"); }) ==
        (from.path / "model.safetensors").string() + ": cannot open: No such file or directory");
  std::filesystem::copy_file(folders / "mixtral/model.safetensors", from.path / "model.safetensors");
  CHECK(error(to,
              [&](auto&) {
                std::filesystem::copy_file(folders / "olmoe/model.safetensors", from.path / "model.safetensors",
                                           std::filesystem::copy_options::overwrite_existing);
              }) == (from.path / "model.safetensors").string() +
                        ": tensor \"model.layers.0.self_attn.q_proj.weight\": expected [24, 8], got [8, 8]");
  CHECK(temp.entries() == 0);
  std::filesystem::copy_file(folders / "mixtral/model.safetensors", from.path / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::create_directory(to);
  temp.write("mine", "new/notes.txt");
  CHECK(error(to, nothing)
            .ends_with("/new: cannot replace: expected a new folder, or only files of an earlier save, "
                       "got notes.txt"));
  CHECK(temp.entries() == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(to), {}) == 1);
}

TEST_CASE("save_decoder: throws for frozen parameters without elements") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const auto config = io::read_decoder_config(folders / "mixtral");
  with_decoder(config.sizes, [&](const auto& model) {
    auto frozen = io::load_frozen_decoder(folders / "mixtral", ctx, config, model);
    const ModelAndLoss<decltype(frozen.model.params), decltype(frozen.loss)> params{std::move(frozen.model.params),
                                                                                    std::move(frozen.loss)};
    CHECK_THROWS_AS(io::save_decoder(temp.path / "new", ctx, config, params, folders / "mixtral"), ArgumentError);
  });
  CHECK(temp.entries() == 0);
}
