// Decodes instructions: the operation and the places of its operands.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/lexer.hpp"
#include "cuda_emulator/mnemonic.hpp"
#include "cuda_emulator/places.hpp"

namespace gatefold::cuda_emulator {

/// The places of a function's parameters and results in local memory, and the beginning of its code.
struct Frame {
  std::uint32_t entry = 0, return_row = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> results, arguments;  // offset, bytes
};

class InstructionDecoder : protected Places {
 protected:
  using Places::Places;

  /// The arguments and results of a call, kept until the called function is decoded.
  struct Actual {
    std::size_t call;
    std::string name;
    std::vector<Local> arguments, results;
  };

  void emit(Instruction in, std::string_view text, std::string_view reason = {});

  /// Thrown if one instruction is unknown, but the rest of the text can still be read.
  struct Refused {
    std::string_view reason;
  };

  void instruction();

  void comma();

  /// Reads the next operand of the text: a register or a value of `bits` bits, or any register if `bits` is 0.
  Operand operand(int bits);

  void add(int bits) { operands_.push_back(operand(bits)); }

  /// Reads `|q` after a destination.
  void add_second_predicate() { operands_.push_back(lexer_->accept("|") ? operand(1) : scratch(1)); }

  /// Reads one register, or the registers of a vector. @returns how many
  std::uint8_t add_vector(int bits);

  /// Reads an address: `[%rd1+16]`, `[name+8]` or `[128]`.
  ///
  /// @param space  changed from parameter to local if the variable is a parameter of a function or of a call
  /// @returns the offset
  std::int64_t add_address(Space& space);

  void take_space(Mnemonic& mnemonic, Instruction& in);

  /// Reads memory semantics, scope and cache hints. Two accesses that are not weak do not race with each other.
  static void take_ordering(Mnemonic& mnemonic, Instruction& in);

  static std::uint8_t take_elements(Mnemonic& mnemonic);

  void operands_of(Mnemonic& mnemonic, Instruction& in);

  void arithmetic(const Arithmetic& chosen, Instruction& in);

  void move(Mnemonic&, Instruction& in);

  /// Reads an address or a register, as in `mov.u64 %rd1, name+16;`.
  void address_or_register(int bits);

  void load(Mnemonic& mnemonic, Instruction& in);

  void store(Mnemonic& mnemonic, Instruction& in);

  void cache_hint();

  void atomic(Mnemonic& mnemonic, Instruction& in);

  /// Decodes copies. Threads wait for cp.async.bulk at an mbarrier, so waiting for groups of bulk copies does nothing.
  void copy(Mnemonic& mnemonic, Instruction& in);
  void copy_tensor(Mnemonic& mnemonic, Instruction& in);

  void arrive_after_copies(Mnemonic& mnemonic, Instruction& in);

  /// Reads an address without offset, for instructions with several addresses.
  void plain_address();

  void memory_barrier(Mnemonic& mnemonic, Instruction& in);

  void convert_address(Mnemonic& mnemonic, Instruction& in);

  void is_space(Mnemonic& mnemonic, Instruction& in);

  void active_mask(Mnemonic&, Instruction& in);

  void branch(Mnemonic& mnemonic, Instruction& in);

  void function_return(Mnemonic& mnemonic, Instruction& in);

  void leave(Mnemonic&, Instruction& in) { in.op = Opcode::exit; }
  void trap(Mnemonic&, Instruction& in) { in.op = Opcode::trap; }

  /// Decodes `call.uni (result), name, (argument, ...);`.
  void call(Mnemonic& mnemonic, Instruction& in);

  std::vector<Local> actual_parameters();

  void barrier(Mnemonic& mnemonic, Instruction& in);

  void shuffle(Mnemonic& mnemonic, Instruction& in);

  void vote(Mnemonic& mnemonic, Instruction& in);

  void match(Mnemonic& mnemonic, Instruction& in);

  void reduce(Mnemonic& mnemonic, Instruction& in);

  void elect(Mnemonic& mnemonic, Instruction& in);

  // tensor_core_decoder.cpp
  void add_registers(int count);
  void load_matrix(Mnemonic& mnemonic, Instruction& in);
  void multiply_matrices(Mnemonic& mnemonic, Instruction& in);
  void warpgroup_product(Mnemonic& mnemonic, Instruction& in);
  void multiply_async(Mnemonic& mnemonic, Instruction& in);
  void set_registers(Mnemonic& mnemonic, Instruction& in);

  /// Throws Refused unless the target of the text is `name`, for example sm_90a.
  void need_target(std::string_view name) const;

  /// Decodes fences. Only fences between blocks and between proxies have an effect, because memory is coherent
  /// otherwise and barriers order it.
  void fence(Mnemonic& mnemonic, Instruction& in);

  /// Decodes hints, which do nothing, and nanosleep, which lets other warps and blocks run.
  void nothing(Mnemonic& mnemonic, Instruction& in);

  using Decode = void (InstructionDecoder::*)(Mnemonic&, Instruction&);
  static Decode decode_named(std::string_view root);

  std::optional<Lexer> lexer_;
  std::vector<Operand> operands_;  // of the current instruction
  Line line_, inlined_at_;
  std::vector<std::pair<std::size_t, std::string_view>> branches_;  // instruction, label

  bool is_kernel_ = true;
  std::string caller_;
  std::uint32_t return_row_ = 0;
  std::map<std::string, Frame> frames_;
  std::map<std::string, std::set<std::string>> callers_;  // from caller to callees
  std::vector<std::string> pending_;                      // called functions that are not decoded yet
  std::vector<Actual> actual_;
};

}  // namespace gatefold::cuda_emulator
