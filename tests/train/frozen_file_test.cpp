#include "gatefold/train/frozen_file.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/zero_computation.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/train/load_frozen_decoder.hpp"
#include "support/decoder_folders.hpp"
#include "support/frozen_files.hpp"
#include "support/quantised.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class B>
void check_round_trip(FreezeOptions options) {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  typename B::Context ctx(2);
  const auto frozen = frozen_branch<B>(ctx, options);
  io::save_frozen(path, ctx, frozen, {{"made", "here"}});
  CHECK(io::read_metadata(path).at("made") == "here");
  const auto loaded = io::load_frozen(path, ctx, file_branch());
  CHECK(outputs_of_file<B>(ctx, loaded) == outputs_of_file<B>(ctx, frozen));
  // Loaded parameters can be saved again. If the weights are quantised, the file then has the same bytes.
  const auto again = folder.path / "again.safetensors";
  io::save_frozen(again, ctx, loaded, {{"made", "here"}});
  if (is_quantised(options.weights)) CHECK(read_bytes(again) == read_bytes(path));
}

/// Returns the error of loading a changed file of the branch.
template <class F>
std::string error_of(const F& change) {
  return error_of_changed(
      [](const auto& path, auto& ctx) {
        io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int8}));
      },
      [](const auto& path, auto& ctx) { io::load_frozen(path, ctx, file_branch()); }, change);
}
/// Returns the error of loading a changed file of the language model with an output layer in `form`.
template <class F>
std::string error_of_layers(Weights form, const F& change) {
  return error_of_changed(
      [&](const auto& path, auto& ctx) {
        io::save_frozen(path, ctx, frozen_layers<Cpu>(ctx, false, {.weights = form}));
      },
      [](const auto& path, auto& ctx) { io::load_frozen(path, ctx, file_layers(), file_loss(false)); }, change);
}
/// Replaces a text in the header by another of the same length.
auto replace(const std::string& from, const std::string& to) {
  return [=](std::string& text) {
    REQUIRE(from.size() == to.size());
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
  };
}

}  // namespace

TEST_CASE_TEMPLATE("save_frozen: load_frozen gives the same results", B, Cpu, CpuBf16) {
  check_round_trip<B>({});
  check_round_trip<B>({.weights = Weights::bfloat16});
  for (const Weights form : naive::quantised_forms) {
    check_round_trip<B>({.weights = form});
    check_round_trip<B>({.weights = form, .except = {{"**.down", Weights::int8}}});
  }
}

TEST_CASE("save_frozen: weights that a policy reads in place stay floats") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 5, 16);
  const auto check = [&](const auto& layer, const std::string& in_place) {
    const auto outputs_of = [&](const auto& params) {
      Tensor<float, 2, Cpu> y(5, 16);
      infer(layer, ctx, params, x, y);
      return std::vector<float>(y.data(), y.data() + y.size());
    };
    for (const Weights form : naive::quantised_forms) {
      const auto frozen = freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}), {.weights = form});
      io::save_frozen(path, ctx, frozen);
      CHECK(outputs_of(io::load_frozen(path, ctx, layer)) == outputs_of(frozen));
      CHECK(io::TensorFiles(path).info(in_place).dtype == "F32");
    }
  };
  check(Mixture{SoftMoe{.count = 3, .slots = 2}, Linear{.model_dim = 16}}, "gate.phi");
  check(Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, ConstantExpert{.model_dim = 16}},
        "expert.weight");
}

TEST_CASE_TEMPLATE("save_frozen: a language model gives the same results", B, Cpu, CpuBf16) {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  for (const bool tied : {false, true})
    for (const FreezeOptions& options : options_of_layers()) {
      typename B::Context ctx(2);
      const auto frozen = frozen_layers<B>(ctx, tied, options);
      io::save_frozen(path, ctx, frozen, {{"made", "here"}});
      const auto loaded = io::load_frozen(path, ctx, file_layers(), file_loss(tied));
      CAPTURE(tied);
      CAPTURE(int(options.weights));
      CHECK(outputs_and_logits<B>(ctx, file_layers(), file_loss(tied), loaded) ==
            outputs_and_logits<B>(ctx, file_layers(), file_loss(tied), frozen));
      CHECK(io::read_metadata(path).at("made") == "here");
    }
}

TEST_CASE_TEMPLATE("save_frozen: load_frozen reads a decoder without the original folder", B, Cpu, CpuBf16) {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  const auto check = [&](const std::string& name, const FreezeOptions& options) {
    CAPTURE(name);
    typename B::Context ctx(1);
    const auto config = io::read_decoder_config(decoder_folders() / name);
    with_decoder(config.sizes, [&]<class M>(const M& model) {
      const StreamedCrossEntropy loss = config.sizes.loss();
      const auto frozen = io::load_frozen_decoder(decoder_folders() / name, ctx, config, model, options);
      io::save_frozen(path, ctx, frozen);
      const auto loaded = io::load_frozen(path, ctx, model, loss);
      const auto extra = extra_of<Extra<M, float, B>>(Segment<float, B>{.length = 3});
      CHECK(outputs_and_logits<B>(ctx, model, loss, loaded, extra) ==
            outputs_and_logits<B>(ctx, model, loss, frozen, extra));
    });
  };
  if constexpr (std::is_same_v<B, Cpu>)
    for (const std::string& name : all_decoders()) check(name, {.weights = Weights::int8});
  // In the next checks, weights without elements have packed copies that are not quantised.
  check("mixtral", {});
  check("mixtral", {.weights = Weights::bfloat16});
  check("qwen2_moe", {.weights = Weights::int4, .except = {{"**.shared", Weights::bfloat16}}});
}

TEST_CASE("save_frozen: writes expected names and shapes of a language model") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  Cpu::Context ctx(1);
  for (const bool tied : {false, true})
    for (const Weights form : {Weights::int4, Weights::bfloat16}) {
      io::save_frozen(path, ctx, frozen_layers<Cpu>(ctx, tied, {.weights = form}));
      const io::TensorFiles files(path);
      CHECK(files.info("model.layers.0.weight").dtype == "F32");
      CHECK(files.info("loss.bias").shape == std::vector<std::uint64_t>{45});
      if (form == Weights::int4) {
        CHECK(files.info("loss.weight.int4").shape == std::vector<std::uint64_t>{1, 19, 45});
        CHECK(files.info("loss.weight.scale").shape == std::vector<std::uint64_t>{1, 2, 45});
        CHECK(!files.contains("loss.weight"));
      } else {
        CHECK(files.info("loss.weight").dtype == "BF16");
        CHECK(files.info("loss.weight").shape == std::vector<std::uint64_t>{45, 37});
      }
    }
}

TEST_CASE("load_frozen: errors for a language model name the wrong tensor") {
  const auto nothing = [](std::string&) {};
  CHECK(error_of_layers(Weights::int8, nothing) == "no error");
  CHECK(error_of_layers(Weights::int8, replace("loss.weight.int8", "loss.weight.int9")) ==
        "tensor \"loss.weight\": missing");
  CHECK(error_of_layers(Weights::int8, replace("[1,37,45]", "[1,45,37]")) ==
        "tensor \"loss.weight.int8\": expected [1, 37, 45], got [1, 45, 37]");
  CHECK(error_of_layers(Weights::int8, replace("loss.bias", "loss.bios")) == "tensor \"loss.bias\": missing");
  CHECK(error_of_layers(Weights::bfloat16, replace("BF16\",\"shape\":[45,37]", "BF16\",\"shape\":[37,45]")) ==
        "tensor \"loss.weight\": expected [45, 37], got [37, 45]");
  // Files of a model without a loss, and of a model with another loss.
  const auto save = [](const auto& path, auto& ctx) {
    io::save_frozen(path, ctx, frozen_layers<Cpu>(ctx, false, {.weights = Weights::int8}).model);
  };
  const auto load = [](const auto& path, auto& ctx) { io::load_frozen(path, ctx, file_layers(), file_loss(false)); };
  CHECK(error_of_changed(save, load, nothing) == "tensor \"model.layers.0.weight\": missing");
  const auto load_tied = [](const auto& path, auto& ctx) {
    io::load_frozen(path, ctx, file_layers(), file_loss(true));
  };
  const auto save_layers = [](const auto& path, auto& ctx) {
    io::save_frozen(path, ctx, frozen_layers<Cpu>(ctx, false, {}));
  };
  CHECK(error_of_changed(save_layers, load_tied, nothing) == "tensor \"loss.weight\": expected [0, 37], got [45, 37]");
}

TEST_CASE("save_frozen: writes expected names, types and shapes") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  Cpu::Context ctx(1);
  io::save_frozen(path, ctx,
                  frozen_branch<Cpu>(ctx, {.weights = Weights::int4, .except = {{"**.down", Weights::int8}}}));
  const io::TensorFiles files(path);
  const auto is = [&](const char* name, const char* dtype, const std::vector<std::uint64_t>& shape) {
    CAPTURE(name);
    CHECK(files.info(name).dtype == dtype);
    CHECK(files.info(name).shape == shape);
  };
  is("expert.up.int4", "U8", {3, 19, 70});
  is("expert.up.scale", "BF16", {3, 2, 70});
  is("expert.down.int8", "I8", {3, 70, 37});
  is("expert.down.scale", "BF16", {3, 3, 37});
  is("expert.up_bias", "F32", {3, 70});
  CHECK(!files.contains("expert.up"));
}

TEST_CASE("load_frozen: errors name the wrong tensor") {
  CHECK(error_of(replace("expert.up.scale", "expert.ap.scale")) == "tensor \"expert.up.scale\": missing");
  CHECK(error_of(replace("expert.up.int8", "expert.up.int9")) == "tensor \"expert.up\": missing");
  CHECK(error_of(replace("expert.up.int8", "expert.up.int4")) ==
        "tensor \"expert.up.int4\": dtype: expected U8, got I8");
  CHECK(error_of(replace("\"I8\",\"shape\":[3,70,37]", "\"I8\",\"shape\":[3,37,70]")) ==
        "tensor \"expert.down.int8\": expected [3, 70, 37], got [3, 37, 70]");
  CHECK(error_of(replace("expert.up_bias", "expert.op_bias")) == "tensor \"expert.up_bias\": missing");
  const auto cut = [](std::string& text) { text.pop_back(); };
  CHECK(error_of(cut).find("no error") == std::string::npos);
  const auto number = [](std::string& text) {
    std::uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof(header));
    const std::string name = "\"expert.gate.int8\"", offsets = "\"data_offsets\":[";
    const std::size_t at = text.find(offsets, text.find(name));
    text[8 + header + std::stoull(text.substr(at + offsets.size())) + 5] = '\x80';
  };
  CHECK(error_of(number) == "tensor \"expert.gate.int8\": expected numbers from -127 to 127, got -128 as number 5");
}

namespace {

/// Returns the error of loading a changed file of the branch with all weights in `form`.
template <class F>
std::string error_of_form(Weights form, const F& change) {
  return error_of_changed(
      [&](const auto& path, auto& ctx) { io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = form})); },
      [](const auto& path, auto& ctx) { io::load_frozen(path, ctx, file_branch()); }, changed_parts(change));
}

}  // namespace

TEST_CASE("load_frozen: errors for damaged quantised weights name the tensor") {
  using nlohmann::json;
  for (const Weights form : naive::quantised_forms) {
    CAPTURE(int(form));
    const std::string up = std::string("expert.up") + io::frozen_file::suffix(form), scale = "expert.up.scale",
                      in_quotes = "tensor \"" + up + "\"";
    const Index rows = form == Weights::int8 ? 37 : 19;
    CHECK(error_of_form(form, [](json&, std::string&) {}) == "no error");

    // Scales that are infinite or NaN.
    for (const auto& scale_and_name : {std::pair(0x7f80, "inf"), {0xff80, "-inf"}, {0x7fc0, "nan"}, {0x7f81, "nan"}})
      CHECK(error_of_form(form,
                          [&](json& header, std::string& elements) {
                            const std::size_t at = header[scale]["data_offsets"][0].get<std::size_t>() + 2 * 7;
                            elements[at] = static_cast<char>(scale_and_name.first & 255);
                            elements[at + 1] = static_cast<char>(scale_and_name.first >> 8);
                          }) == std::string("tensor \"expert.up.scale\": expected finite scales, got ") +
                                    scale_and_name.second + " as number 7");

    // Scales and numbers of a wrong shape, with the right number of elements.
    CHECK(error_of_form(form, [&](json& header, std::string&) {
            header[scale]["shape"] = {3, 70, 2};
          }) == "tensor \"expert.up.scale\": expected [3, 2, 70], got [3, 70, 2]");
    CHECK(error_of_form(form, [&](json& header, std::string&) {
            header[scale]["shape"] = {6, 70};
          }) == "tensor \"expert.up.scale\": expected [3, 2, 70], got [6, 70]");
    CHECK(error_of_form(form,
                        [&](json& header, std::string&) {
                          header[up]["shape"] = {3, 70, rows};
                        }) ==
          in_quotes + ": expected [3, " + std::to_string(rows) + ", 70], got [3, 70, " + std::to_string(rows) + "]");
    // A shape whose number of elements does not match the offsets.
    CHECK(error_of_form(form, [&](json& header, std::string&) {
            header[scale]["shape"] = {3, 3, 70};
          }).find("tensor \"expert.up.scale\"") != std::string::npos);

    // Types and names of another form.
    CHECK(error_of_form(form, [&](json& header, std::string&) { header[scale]["dtype"] = "F16"; }) ==
          "tensor \"expert.up.scale\": dtype: expected BF16, got F16");
    CHECK(error_of_form(form, [&](json& header, std::string&) { header[up]["dtype"] = "F8_E4M3"; }) ==
          in_quotes + ": dtype: expected " + (form == Weights::int8 ? "I8" : "U8") + ", got F8_E4M3");
    const auto rename = [&](const std::string& to) {
      return error_of_form(form, [&](json& header, std::string&) {
        header[to] = header[up];
        header.erase(up);
      });
    };
    CHECK(rename("expert.up.q4_0") == "tensor \"expert.up\": missing");
    CHECK(rename("expert.up") == (form == Weights::int8
                                      ? "tensor \"expert.up.scale\": unexpected"
                                      : "tensor \"expert.up\": expected [3, 37, 70], got [3, 19, 70]"));
    if (form != Weights::int8)
      CHECK(rename("expert.up.int8") == "tensor \"expert.up.int8\": dtype: expected I8, got U8");

    // Another form of the same tensor, and another tensor, both without elements.
    for (const std::string other : {".int8", ".int4", ".mxfp4", ""}) {
      if ("expert.up" + other == up) continue;
      const std::string error = error_of_form(form, [&](json& header, std::string&) {
        header["expert.up" + other] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
      });
      CHECK(error.find("another form of the same tensor") != std::string::npos);
    }
    CHECK(error_of_form(form, [&](json& header, std::string&) {
            header["expert.more"] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
          }) == "tensor \"expert.more\": unexpected");

    // Offsets that overlap, or have a gap.
    struct Moved {
      int begin, end;
      const char* error;
    };
    for (const Moved& moved : {Moved{-2, -2, "(overlap)"}, Moved{2, 2, "(gap)"}, Moved{0, -2, "data_offsets"}}) {
      const std::string error = error_of_form(form, [&](json& header, std::string&) {
        json& offsets = header[up]["data_offsets"];
        offsets = {offsets[0].get<int>() + moved.begin, offsets[1].get<int>() + moved.end};
      });
      CHECK(error.find(moved.error) != std::string::npos);
    }
    // Elements that are cut off, or too many.
    for (const std::size_t left : {std::size_t(0), std::size_t(1), std::size_t(1000)})
      CHECK(error_of_form(form, [&](json&, std::string& elements) { elements.resize(left); }).find("truncated") !=
            std::string::npos);
    CHECK(error_of_form(form, [](json&, std::string& elements) { elements.pop_back(); }).find("truncated") !=
          std::string::npos);
    CHECK(error_of_form(form, [](json&, std::string& elements) { elements += '\0'; }).find("found more bytes") !=
          std::string::npos);
  }
}

TEST_CASE("load_frozen: a damaged file leaves loaded weights unchanged") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  Cpu::Context ctx(1);
  io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int4}));
  auto loaded = io::load_frozen(path, ctx, file_branch());
  const auto before = outputs_of_file<Cpu>(ctx, loaded);
  std::string text = read_bytes(path);
  std::memcpy(text.data() + text.find("expert.down.scale"), "expert.dawn", 11);
  std::ofstream(path, std::ios::binary) << text;
  CHECK_THROWS_AS(loaded = io::load_frozen(path, ctx, file_branch()), FileError);
  CHECK(outputs_of_file<Cpu>(ctx, loaded) == before);
}

TEST_CASE("load_frozen: a one-column model does not read quantised weights") {
  const auto file = [](Index columns) {
    return [=](const auto& path, auto& ctx) {
      const Linear linear{.model_dim = 40, .output_dim = columns};
      auto frozen = freeze(ctx, OneExpert{linear}.template init<float, Cpu>(ctx, Seed{1}), {.weights = Weights::int8});
      io::save_frozen(path, ctx, frozen);
    };
  };
  const auto load = [](const auto& path, auto& ctx) {
    io::load_frozen(path, ctx, OneExpert{Linear{.model_dim = 40, .output_dim = 1}});
  };
  CHECK(error_of_changed(file(1), load, [](std::string&) {}) == "no error");
  CHECK(error_of_changed(file(2), load, [](std::string&) {}).find("missing") != std::string::npos);
}

TEST_CASE("load_frozen: random changes of a file give errors, never crashes") {
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 200; ++i)
    errors += error_of([&](std::string& text) {
                std::uint64_t header = 0;
                std::memcpy(&header, text.data(), sizeof(header));
                // Changes the header, and in half of the files also one byte anywhere. Changed elements can be valid.
                for (int n = 0; n < 3; ++n) text[random() % (8 + header)] = static_cast<char>(random());
                if (i % 2 == 0) text[random() % text.size()] = static_cast<char>(random());
                if (i % 10 == 0) text.resize(random() % text.size());
              }) != "no error";
  CHECK(errors > 150);
}

TEST_CASE("load_frozen: reads a model with an embedding") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  const Chain model{Embedding{.vocabulary = 7, .model_dim = 37}, file_branch()};
  Cpu::Context ctx(1);
  const auto frozen = freeze(ctx, init_params<float, Cpu>(model, ctx, Seed{1}), {.weights = Weights::int8});
  io::save_frozen(path, ctx, frozen);
  const auto loaded = io::load_frozen(path, ctx, model);
  const std::vector<Index> ids{1, 6, 0, 1};
  const auto read = [&](const auto& params) {
    Tensor<float, 2, Cpu> y(4, 37);
    Carry<decltype(model), float, Cpu> carry;
    model.begin(ctx, params.params, 4, carry);
    infer(model, ctx, params, ids, carry, y);
    return std::vector<float>(y.data(), y.data() + y.size());
  };
  CHECK(read(loaded) == read(frozen));
}
