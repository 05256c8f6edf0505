// Reads the config.json of a golden decoder in which options are replaced, or any bytes as config.json. The file is
// read, or refused with a message of one line. If it is read, the number of parameters of the decoder, the names of its
// tensors and the size of its KV cache are computed or refused, without memory for parameters. The memory that is held
// depends on the number of layers, but on no other number.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/backend/shapes.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "support/decoders.hpp"

using namespace gatefold;

namespace {

/// The config.json of all golden decoders, and all names of options in them.
struct GoldenConfigs {
  std::vector<nlohmann::json> configs;
  std::vector<std::string> names{"partial_rotary_factor", "attention_factor", "rope_scaling", "rope_parameters"};
  GoldenConfigs() {
    for (const std::string& name : support::all_decoders()) {
      std::ifstream file(support::decoder_folders() / name / "config.json");
      configs.push_back(nlohmann::json::parse(file));
      for (const auto& [option, value] : configs.back().items()) {
        names.push_back(option);
        if (value.is_object())
          for (const auto& [inner, number] : value.items()) names.push_back(inner);
      }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
};

/// The bytes of an input, one after the other; after the last one, zeros.
struct Choices {
  const std::uint8_t* at;
  std::size_t left;
  std::uint8_t next() { return left > 0 ? (--left, *at++) : std::uint8_t{0}; }
  template <class List>
  auto one_of(const List& list) {
    return list[next() % std::size(list)];
  }
};

nlohmann::json value_of(Choices& choices, int depth = 0) {
  constexpr std::array<double, 14> numbers{0,     -0.0,   1,      -1,  0.5,       1.5,  1e-300,
                                           1e300, -1e300, 5e-324, 1e9, 1.0000001, 1e18, 3.5};
  constexpr std::array<std::int64_t, 14> integers{
      -1,         0x7fffffff,       0x80000000, 0xffffffff, 0x100000000, 999999999, 1000000000,
      1000000001, 1000000000000000, 10000,      10001,      INT64_MAX,   INT64_MIN, 4096};
  constexpr std::array texts{"mixtral",        "qwen2_moe",   "qwen3_moe", "olmoe",  "gpt_oss",
                             "deepseek_v2",    "deepseek_v3", "default",   "linear", "llama3",
                             "yarn",           "dynamic",     "silu",      "gelu",   "sliding_attention",
                             "full_attention", "greedy",      "\n"};
  switch (choices.next() % 9) {
    case 0:
      return nullptr;
    case 1:
      return choices.next();
    case 2:
      return choices.one_of(integers);
    case 3:
      return UINT64_MAX - choices.next();
    case 4:
      return choices.one_of(numbers);
    case 5:
      return choices.next() % 2 == 1;
    case 6:
      return choices.one_of(texts);
    case 7: {
      auto list = nlohmann::json::array();
      for (int count = depth < 2 ? choices.next() % 8 : 0; count > 0; --count)
        list.push_back(value_of(choices, depth + 1));
      return list;
    }
    default:
      return {{"rope_type", choices.one_of(texts)}, {"factor", choices.one_of(numbers)}};
  }
}

/// Returns the text of config.json: the input itself, or a golden one with other options.
std::string text_of(const std::uint8_t* bytes, std::size_t size) {
  static const GoldenConfigs golden;
  if (size == 0 || bytes[0] >= golden.configs.size()) return {bytes, bytes + size};
  nlohmann::json json = golden.configs[bytes[0]];
  Choices rest{bytes + 1, size - 1};
  for (int changes = 0; rest.left > 0 && changes < 8; ++changes) {
    const std::string name = rest.one_of(golden.names);
    const bool inside = json.contains("rope_parameters") && json["rope_parameters"].contains(name);
    nlohmann::json& to = inside ? json["rope_parameters"] : json;
    if (rest.next() % 8 == 0)
      to.erase(name);
    else
      to[name] = value_of(rest);
  }
  return json.dump();
}

/// Calls f, and returns false if it throws an Error, whose message must be one line.
template <class F>
bool without_error(const F& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    const std::string message = error.what();
    FUZZ_REQUIRE(message.find('\n') == message.npos && message.size() < 1000);
    return false;
  }
}

void check_rotary(const Rotary& rotary, Index head_dim) {
  const Index rotated = rotary.rotated(head_dim);
  FUZZ_REQUIRE(rotated >= 0 && rotated <= head_dim);
  for (const Index pair : {Index(0), rotated / 4, rotated / 2 - 1})
    if (0 <= pair && 2 * pair < rotated) FUZZ_REQUIRE(!std::isnan(rotary.frequency(pair, rotated)));
}

void build(const io::DecoderConfig& config) {
  const DecoderSizes& sizes = config.sizes;
  with_decoder(sizes, [&](const auto& model) {
    FUZZ_REQUIRE(count_parameters(model, sizes.loss()) > 0);
    const CacheSize cache = sizes.cache(1, 1000);
    FUZZ_REQUIRE(cache.layers == sizes.depth && cache.parts > 0 && cache.width > 0);
    FUZZ_REQUIRE(cache.keep >= 0 && 0 < cache.capacity() && cache.capacity() <= 1000);
    FUZZ_REQUIRE(io::decoder_map(config).size() >= static_cast<std::size_t>(2 + 9 * sizes.depth));
    const bool latent = sizes.latent.latent_dim > 0;
    check_rotary(latent ? sizes.latent.rotary : sizes.attention.rotary,
                 latent ? sizes.latent.rotary_dim : sizes.attention.with_model_dim(sizes.model_dim).width());
  });
}

}  // namespace

int fuzz::config(const std::uint8_t* bytes, std::size_t size) {
  const std::string text = text_of(bytes, size);
  const std::filesystem::path folder = fuzz::scratch_file().parent_path();
  std::ofstream(folder / "config.json", std::ios::binary) << text;
  std::optional<io::DecoderConfig> config;
  bool read = false;
  FUZZ_REQUIRE(fuzz::peak([&] { read = without_error([&] { config = io::read_decoder_config(folder); }); }) <=
               64 * text.size() + (1 << 20));
  if (!read) return 0;
  const DecoderSizes& sizes = config->sizes;
  FUZZ_REQUIRE(1 <= sizes.depth && sizes.depth <= 10'000);
  if (sizes.depth > 100) return 0;  // for speed
  FUZZ_REQUIRE(fuzz::peak([&] { without_error([&] { build(*config); }); }) <= static_cast<std::size_t>(sizes.depth + 1)
                                                                                  << 17);
  return 0;
}
