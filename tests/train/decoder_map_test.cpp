#include "gatefold/train/decoder_map.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "support/decoder_folders.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const std::filesystem::path folders = decoder_folders();

std::string theirs_of(const io::TensorMap& map, const std::string& ours) {
  for (const io::MapEntry& entry : map)
    if (entry.ours == ours) return entry.theirs;
  return "none";
}

}  // namespace

TEST_CASE("decoder_map: gives the names of transformers") {
  const io::DecoderConfig mixtral = io::read_decoder_config(folders / "mixtral");
  const io::TensorMap map = io::decoder_map(mixtral),
                      fused = io::decoder_map(mixtral, io::published::ExpertStorage::fused, "a.");
  const std::string layer = "model.layers.1.layers.1.layers.";
  CHECK(theirs_of(map, "loss.weight") == "lm_head.weight");
  CHECK(theirs_of(map, layer + "0.branch.branch.query.weight") == "model.layers.1.self_attn.q_proj.weight");
  CHECK(theirs_of(map, layer + "1.branch.branch.first.expert.down") ==
        "model.layers.1.block_sparse_moe.experts.{}.w2.weight");
  CHECK(theirs_of(fused, layer + "1.branch.branch.first.expert.down") == "a.model.layers.1.mlp.experts.down_proj");
}

TEST_CASE("decoder_map: a tied output layer has no tensor") {
  io::DecoderConfig config = io::read_decoder_config(folders / "olmoe");
  config.sizes.tied = true;
  CHECK(theirs_of(io::decoder_map(config), "loss.weight") == "none");
  config.sizes.tied = false;
  CHECK(theirs_of(io::decoder_map(config), "loss.weight") == "lm_head.weight");
}

TEST_CASE("decoder_map: a saved decoder has the bytes of the folder") {
  Cpu::Context ctx(1);
  for (const std::string& name : all_decoders()) {
    if (name == "gpt_oss_mxfp4") continue;  // weights of four bits are saved as floats
    CAPTURE(name);
    const TempDirectory to;
    const auto config = io::read_decoder_config(folders / name);
    with_decoder(config.sizes, [&](const auto& model) {
      const auto params = io::load_decoder(folders / name, ctx, config, model);
      io::save(to.file(), ctx, {}, io::decoder_map(config), params);
    });
    const io::TensorFiles saved(to.file()), expected(folders / name / "model.safetensors");
    std::size_t compared = 0;
    for (const io::TensorInfo& tensor : expected.tensors()) {
      if (name == "llama4" && !tensor.name.starts_with("language_model.")) continue;  // for images
      ++compared;
      CAPTURE(tensor.name);
      CHECK(saved.info(tensor.name).shape == tensor.shape);
      CHECK(saved.info(tensor.name).dtype == tensor.dtype);
      CHECK(saved.read_bytes(tensor.name) == expected.read_bytes(tensor.name));
    }
    CHECK(saved.tensors().size() == compared);
  }
}
