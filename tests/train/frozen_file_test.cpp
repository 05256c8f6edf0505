#include "gatefold/train/frozen_file.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/quantised.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto branch() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 GatedMlp<Silu>{.model_dim = 37, .hidden_dim = 70, .bias = true}};
}

/// Returns the outputs of the branch for 9 items.
template <class B, class P>
std::vector<float> outputs(typename B::Context& ctx, const P& frozen) {
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 9, 37);
  Tensor<float, 2, B> y(9, 37);
  infer(branch(), ctx, frozen, x, y);
  return {y.data(), y.data() + y.size()};
}
template <class B>
auto frozen_branch(typename B::Context& ctx, FreezeOptions options) {
  return freeze(ctx, init_params<float, B>(branch(), ctx, Seed{1}), options);
}

template <class B>
void check_round_trip(FreezeOptions options) {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  typename B::Context ctx(2);
  const auto frozen = frozen_branch<B>(ctx, options);
  io::save_frozen(path, ctx, frozen, {{"made", "here"}});
  CHECK(io::read_metadata(path).at("made") == "here");
  const auto loaded = io::load_frozen(path, ctx, branch());
  CHECK(outputs<B>(ctx, loaded) == outputs<B>(ctx, frozen));
  // What was loaded can be saved again, with the same bytes.
  const auto again = folder.path / "again.safetensors";
  io::save_frozen(again, ctx, loaded, {{"made", "here"}});
  const auto bytes = [](const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  if (is_quantised(options.weights)) CHECK(bytes(again) == bytes(path));
}

/// Writes a file with the numbers and the scales of expert.up, changed by `change`, and returns the error of loading
/// it.
template <class F>
std::string error_of(const F& change) {
  const TempDirectory folder;
  const auto path = folder.path / "f";
  Cpu::Context ctx(1);
  io::save_frozen(path, ctx, frozen_branch<Cpu>(ctx, {.weights = Weights::int8}));
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  change(text);
  std::ofstream(path, std::ios::binary) << text;
  try {
    io::load_frozen(path, ctx, branch());
  } catch (const FileError& error) {
    const std::string message = error.what();
    return message.substr(message.find(": ") + 2);
  }
  return "no error";
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

TEST_CASE("save_frozen: names, types and shapes of the file") {
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

TEST_CASE("load_frozen: a file with a wrong tensor names it") {
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

TEST_CASE("load_frozen: random changes of a file give errors, never crashes") {
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 200; ++i)
    errors += error_of([&](std::string& text) {
                std::uint64_t header = 0;
                std::memcpy(&header, text.data(), sizeof(header));
                for (int n = 0; n < 3; ++n) text[random() % (8 + header)] = static_cast<char>(random());
                if (i % 10 == 0) text.resize(random() % text.size());
              }) != "no error";
  CHECK(errors > 150);
}

TEST_CASE("load_frozen: reads a model with an embedding") {
  const TempDirectory folder;
  const auto path = folder.path / "frozen.safetensors";
  const Chain model{Embedding{.vocabulary = 7, .model_dim = 37}, branch()};
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
