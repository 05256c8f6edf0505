// expect: gatefold: save_decoder takes the parameters of load_decoder, or trainer\.params; parameters of freeze and load_frozen_decoder are only for inference; see docs/how-to/checkpoints\.md
#include <gatefold/decoders.hpp>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

void save(Cpu::Context& ctx, const io::DecoderConfig& config) {
  with_decoder(config.sizes, [&](const auto& model) {
#ifndef GATEFOLD_FAIL
    const auto params = io::load_decoder("from", ctx, config, model);
#else
    const auto params = io::load_frozen_decoder("from", ctx, config, model);
#endif
    io::save_decoder("to", ctx, config, params, "from");
  });
}
