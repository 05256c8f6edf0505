#pragma once

// Published decoders with mixtures of experts (Mixtral, Qwen, OLMoE, gpt-oss, DeepSeek, Llama 4): their layers, and
// functions that load and save their folders (config.json and safetensors files). gatefold.hpp does not include this
// header, because few programs need it. The header needs nlohmann-json (CMake target gatefold::io), but
// gatefold/model/decoder.hpp does not.

// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/layer/latent_attention.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/config_options.hpp"
#include "gatefold/train/decoder_config.hpp"
#include "gatefold/train/frozen_tensors.hpp"
#include "gatefold/train/frozen_file.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "gatefold/train/load_frozen_decoder.hpp"
#include "gatefold/train/save_decoder.hpp"
// clang-format on
