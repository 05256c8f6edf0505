// Decodes the instructions of tensor cores.
#include "cuda_emulator/instruction_decoder.hpp"

namespace gatefold::cuda_emulator {
namespace {

constexpr std::string_view unknown_matrix = "matrices of a shape or type that the emulator does not know";

}  // namespace

void InstructionDecoder::add_registers(int count) {
  if (!operands_.empty()) comma();
  if (add_vector(32) != count) throw Refused{"a vector that the emulator does not know"};
}

/// [1, 2 or 4 registers, address]
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

/// [4 of d, depth / 4 of a, depth / 8 of b, 4 of c]
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

}  // namespace gatefold::cuda_emulator
