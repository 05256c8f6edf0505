// Decodes asynchronous copies, and operations of the mbarriers at which threads wait for copies.
#include "cuda_emulator/instruction_decoder.hpp"

namespace gatefold::cuda_emulator {

void InstructionDecoder::copy(Mnemonic& mnemonic, Instruction& in) {
  if (!mnemonic.take("async")) throw Refused{"a copy that the emulator does not know"};
  if (mnemonic.take("mbarrier")) return arrive_after_copies(mnemonic, in);
  const bool bulk = mnemonic.take("bulk");
  if (bulk && mnemonic.take("tensor")) return copy_tensor(mnemonic, in);
  if (mnemonic.take("commit_group")) {
    in.op = bulk ? Opcode::nothing : Opcode::copy_commit;
    return;
  }
  if (!bulk && mnemonic.take("wait_all")) {
    in.op = Opcode::copy_wait;
    in.mode = static_cast<std::uint8_t>(CopyWait::all);
    return;
  }
  if (mnemonic.take("wait_group")) {
    if (bulk) mnemonic.take("read");
    in.op = bulk ? Opcode::nothing : Opcode::copy_wait;
    in.mode = static_cast<std::uint8_t>(CopyWait::groups);
    add(32);
    return;
  }
  take_ordering(mnemonic, in);
  const bool to_shared = mnemonic.take("shared") || mnemonic.take("shared::cta") || mnemonic.take("shared::cluster");
  if (!to_shared || !mnemonic.take("global")) throw Refused{"a copy that the emulator does not know"};
  in.space = Space::global;
  if (bulk) {
    if (!mnemonic.take("mbarrier::complete_tx::bytes")) throw Refused{"a copy that the emulator does not know"};
    in.op = Opcode::copy_bulk;
    plain_address();
    comma();
    plain_address();
    comma();
    add(32);
    comma();
    plain_address();
    return;
  }
  in.op = Opcode::copy_async;
  const std::int64_t to = add_address(in.space = Space::shared);
  comma();
  in.second_offset = add_address(in.space = Space::global);
  in.offset = to;
  comma();
  add(32);  // bytes to write
  if (lexer_->accept(",")) {
    add(32);  // bytes to read; the rest is zero
  } else {
    operands_.push_back(operands_.back());
  }
}

/// Decodes cp.async.mbarrier.arrive. The operand is [mbarrier].
void InstructionDecoder::arrive_after_copies(Mnemonic& mnemonic, Instruction& in) {
  if (!mnemonic.take("arrive")) throw Refused{"a copy that the emulator does not know"};
  in.op = Opcode::mbarrier;
  in.mode = static_cast<std::uint8_t>(mnemonic.take("noinc") ? Arrival::after_copies : Arrival::also_after_copies);
  in.strong = true;
  take_space(mnemonic, in);
  plain_address();
}

void InstructionDecoder::plain_address() {
  Space space = Space::generic;
  if (add_address(space) != 0) throw Refused{"an offset that the emulator does not know"};
}

void InstructionDecoder::memory_barrier(Mnemonic& mnemonic, Instruction& in) {
  in.op = Opcode::mbarrier;
  take_space(mnemonic, in);
  if (in.space == Space::generic) in.space = Space::shared;
  in.relaxed = mnemonic.take("relaxed");
  take_ordering(mnemonic, in);
  static constexpr std::pair<std::string_view, Arrival> operations[] = {
      {"init", Arrival::initialise}, {"inval", Arrival::invalidate}, {"try_wait", Arrival::wait},
      {"test_wait", Arrival::wait},  {"arrive", Arrival::arrive},    {"expect_tx", Arrival::expect},
  };
  auto operation = mnemonic.choose(operations);
  if (!operation) throw Refused{"an operation on mbarriers that the emulator does not know"};
  if (*operation == Arrival::arrive && mnemonic.take("expect_tx")) operation = Arrival::arrive_expect;
  in.strong = *operation != Arrival::initialise && *operation != Arrival::invalidate;
  const bool parity = mnemonic.take("parity");
  in.mode = static_cast<std::uint8_t>(*operation);
  in.elements = parity;
  switch (*operation) {
    case Arrival::initialise:
      plain_address();
      comma();
      add(32);
      break;
    case Arrival::invalidate:
      plain_address();
      break;
    case Arrival::expect:
      plain_address();
      comma();
      add(32);
      break;
    case Arrival::arrive:
    case Arrival::arrive_expect:
      add(64);
      comma();
      plain_address();
      if (lexer_->accept(",")) {
        add(32);
      } else {
        operands_.push_back(constant(1, 32));
      }
      break;
    case Arrival::wait:
      add(1);
      comma();
      plain_address();
      comma();
      add(parity ? 32 : 64);
      if (lexer_->accept(",")) operand(32);  // a time limit of the wait, which is ignored
      break;
    case Arrival::after_copies:
    case Arrival::also_after_copies:
      break;  // cp.async.mbarrier
  }
}

}  // namespace gatefold::cuda_emulator
