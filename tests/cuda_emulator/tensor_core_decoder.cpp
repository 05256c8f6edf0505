// Decodes the instructions of tensor cores.
#include <string>

#include "cuda_emulator/instruction_decoder.hpp"

namespace gatefold::cuda_emulator {
namespace {

constexpr std::string_view unknown_matrix = "matrices of a shape or type that the emulator does not know";

}  // namespace

void InstructionDecoder::add_registers(int count) {
  if (!operands_.empty()) comma();
  if (add_vector(32) != count) throw Refused{"a vector that the emulator does not know"};
}

/// Decodes ldmatrix. The operands are [1, 2 or 4 registers, address].
void InstructionDecoder::load_matrix(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, std::uint8_t> counts[] = {{"x1", 1}, {"x2", 2}, {"x4", 4}};
  in.op = Opcode::load_matrix;
  const bool known = mnemonic.take("sync") && mnemonic.take("aligned") && mnemonic.take("m8n8");
  const auto count = mnemonic.choose(counts);
  if (!known || !count || in.type != Type{Kind::bits, 16}) throw Refused{unknown_matrix};
  in.elements = *count;
  in.mode = mnemonic.take("trans");
  take_space(mnemonic, in);
  add_registers(in.elements);
  comma();
  in.offset = add_address(in.space);
}

/// Decodes mma. The operands are [4 of d, depth / 4 of a, depth / 8 of b, 4 of c].
void InstructionDecoder::multiply_matrices(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, std::uint8_t> depths[] = {{"m16n8k8", 8}, {"m16n8k16", 16}};
  static const std::vector<Type> types{{Kind::real, 32}, {Kind::bfloat, 16}, {Kind::bfloat, 16}, {Kind::real, 32}};
  in.op = Opcode::multiply_matrices;
  const bool known = mnemonic.take("sync") && mnemonic.take("aligned") && mnemonic.take("row") && mnemonic.take("col");
  const auto depth = mnemonic.choose(depths);
  if (!known || !depth || mnemonic.types != types) throw Refused{unknown_matrix};
  in.elements = *depth;
  for (const int count : {4, *depth / 4, *depth / 8, 4}) add_registers(count);
}

void InstructionDecoder::need_target(std::string_view name) const {
  if (module_.text->target != name) throw Refused{"an instruction for sm_90a alone: compile for compute_90a"};
}

void InstructionDecoder::warpgroup_product(Mnemonic& mnemonic, Instruction& in) {
  need_target("sm_90a");
  if (!mnemonic.take("sync") || !mnemonic.take("aligned")) throw Refused{unknown_matrix};
  if (mnemonic.take("mma_async")) return multiply_async(mnemonic, in);
  if (mnemonic.take("fence")) {
    in.op = Opcode::product_fence;
  } else if (mnemonic.take("commit_group")) {
    in.op = Opcode::product_commit;
  } else if (mnemonic.take("wait_group")) {
    in.op = Opcode::product_wait;
    add(32);
  } else {
    throw Refused{"a modifier that the emulator does not know"};
  }
}

/// Decodes wgmma.mma_async. The operands are [4 of d for 8 columns, descriptor of a, of b, whether to add to d].
void InstructionDecoder::multiply_async(Mnemonic& mnemonic, Instruction& in) {
  static const std::vector<Type> types{{Kind::real, 32}, {Kind::bfloat, 16}, {Kind::bfloat, 16}};
  in.op = Opcode::product;
  in.elements = 0;
  for (std::uint8_t eights = 1; eights <= 32; ++eights) {
    if (mnemonic.take("m64n" + std::to_string(8 * eights) + "k16")) in.elements = eights;
  }
  if (in.elements == 0 || mnemonic.types != types) throw Refused{unknown_matrix};
  add_registers(4 * in.elements);
  comma();
  if (lexer_->is("{")) throw Refused{"wgmma with A in registers is not modelled"};
  add(64);
  comma();
  add(64);
  comma();
  add(1);
  const auto take_flag = [&](ProductFlag flag, std::int64_t set, std::int64_t clear) {
    comma();
    const auto value = static_cast<std::int64_t>(lexer_->number());
    if (value != set && value != clear) throw Refused{"an immediate that wgmma does not have"};
    if (value == set) in.mode |= static_cast<std::uint8_t>(flag);
  };
  take_flag(ProductFlag::negate_a, -1, 1);
  take_flag(ProductFlag::negate_b, -1, 1);
  take_flag(ProductFlag::transpose_a, 1, 0);
  take_flag(ProductFlag::transpose_b, 1, 0);
}

/// Decodes setmaxnreg.inc and .dec. They change the number of registers, which PTX does not limit.
void InstructionDecoder::set_registers(Mnemonic& mnemonic, Instruction& in) {
  need_target("sm_90a");
  in.op = Opcode::nothing;
  const bool known = mnemonic.take("inc") != mnemonic.take("dec") && mnemonic.take("sync") && mnemonic.take("aligned");
  const std::uint64_t count = lexer_->number();
  if (!known || count < 24 || count > 256 || count % 8 != 0) {
    throw Refused{"setmaxnreg is for 24 to 256 registers, a multiple of 8"};
  }
}

}  // namespace gatefold::cuda_emulator
