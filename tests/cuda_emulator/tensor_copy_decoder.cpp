// Decodes cp.async.bulk.tensor.
#include "cuda_emulator/instruction_decoder.hpp"

namespace gatefold::cuda_emulator {

/// Decodes `[to], [map, {c0, c1, ...}], [mbarrier]` to the operands [to, map, coordinates ..., mbarrier].
void InstructionDecoder::copy_tensor(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, std::uint8_t> ranks[] = {
      {"1d", 1}, {"2d", 2}, {"3d", 3}, {"4d", 4}, {"5d", 5}};
  if (mnemonic.take("multicast::cluster")) throw Refused{"clusters are not modelled"};
  const auto rank = mnemonic.choose(ranks);
  const bool to_shared = mnemonic.take("shared::cluster") || mnemonic.take("shared::cta");
  if (!rank || !to_shared || !mnemonic.take("global") || !mnemonic.take("mbarrier::complete_tx::bytes")) {
    throw Refused{"a copy of tensors that the emulator does not know: it knows loads of tiles into shared memory"};
  }
  mnemonic.take("tile");
  const bool hint = mnemonic.take("L2::cache_hint");
  in.op = Opcode::copy_tensor;
  in.elements = *rank;
  Space space = Space::shared;
  in.offset = add_address(space);
  comma();
  lexer_->expect("[");
  add(64);
  comma();
  if (add_vector(32) != *rank) throw Refused{"as many coordinates as the copy has dimensions were expected"};
  lexer_->expect("]");
  comma();
  in.second_offset = add_address(space = Space::shared);
  if (hint) cache_hint();
}

}  // namespace gatefold::cuda_emulator
