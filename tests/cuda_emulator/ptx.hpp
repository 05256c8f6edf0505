// A PTX program as data. Decoding resolves all names, so that the execution does not look them up.
//
// Registers live in rows, one row per virtual register of a warp with one cell for each of its 32 lanes: 4 bytes for
// everything up to 32 bits, 8 bytes for 64 bits; a predicate is one word with a bit per lane. Immediates, addresses of
// variables and special registers are rows as well, filled in before the code runs, so that an instruction finds all
// its operands in the same way: at a byte offset in the register file of the warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gatefold::cuda_emulator {

inline constexpr int warp_size = 32;

/// The type of an instruction, e.g. `.s32`, `.bf16x2` (kind bfloat, bits 16, packed).
enum class Kind : std::uint8_t { bits, unsigned_integer, signed_integer, real, bfloat, predicate };
struct Type {
  Kind kind = Kind::bits;
  std::uint8_t bits = 32;
  bool packed = false;
  bool floating() const { return kind == Kind::real || kind == Kind::bfloat; }
  std::size_t bytes() const { return packed ? 4 : bits / 8; }
  bool operator==(const Type&) const = default;
};

enum class Space : std::uint8_t { generic, global, shared, local, parameter, constant };

/// The operations of the interpreter itself. An instruction that computes each lane's result only from registers of
/// this lane is `arithmetic`.
enum class Opcode : std::uint8_t {
  refused,
  arithmetic,
  nothing,
  fence,
  proxy_fence,
  load,
  store,
  atomic,
  copy_async,
  copy_commit,
  copy_wait,
  copy_bulk,
  copy_tensor,
  mbarrier,
  cvta,
  isspacep,
  clock,
  activemask,
  branch,
  branch_indexed,
  call,
  function_return,
  exit,
  trap,
  assertion,
  barrier,
  barrier_arrive,
  barrier_reduce,
  warp_barrier,
  shuffle,
  vote,
  match,
  reduce,
  elect,
  // All lanes of a warp execute the following operations together (.aligned, without a mask).
  load_matrix,
  multiply_matrices,
  product_fence,
  product,
  product_commit,
  product_wait,
};

constexpr bool of_whole_warp(Opcode op) { return op >= Opcode::load_matrix; }

/// The place of an operand in the register file. `bits` is the width of the register (1, 16, 32 or 64).
struct Operand {
  static constexpr std::uint32_t none = ~0u;
  std::uint32_t row = none;
  std::uint8_t bits = 0;
  bool negated = false;  // `!%p1`
  bool present() const { return row != none; }
  bool wide() const { return bits == 64; }
};

enum class Rounding : std::uint8_t { nearest, zero, down, up };

/// One instruction. Operands are in the order of the PTX text, destinations first; `{..}` and `d|p` are flattened. The
/// operand of an address is the register of the address; the offset is in `offset`.
struct Instruction {
  /// Executes an arithmetic instruction for the lanes of a mask.
  using Execute = void (*)(char* registers, const Instruction&, std::uint32_t lanes);

  Opcode op = Opcode::refused;
  Type type, from;
  Space space = Space::generic;
  Rounding rounding = Rounding::nearest;
  std::uint8_t elements = 1;              // number of elements of a vector; 2 for .v2
  std::uint8_t mode = 0;                  // meaning depends on the opcode: see Shuffle, Vote, Update ... below
  bool integral = false;                  // .rni, .rzi ...: rounds to an integral value
  bool saturate = false, flush = false;   // .sat, .ftz
  bool strong = false;                    // atomic, .relaxed, .volatile ...: does not race with other strong accesses
  bool acquire = false, release = false;  // orders later (acquire) or earlier accesses between blocks
  bool relaxed = false;                   // an mbarrier operation that orders nothing
  bool aligned = false;                   // a barrier at which the threads of a warp arrive together
  bool negative = false;                  // @!p
  std::uint32_t guard = Operand::none;
  std::uint32_t target = 0;        // target of a branch, or index of a branch table or of a call
  std::int64_t offset = 0;         // offset of the address in bytes
  std::int64_t second_offset = 0;  // offset of the second address of a copy into shared memory
  const Operand* operands = nullptr;
  std::uint8_t count = 0;
  Execute execute = nullptr;
  std::uint32_t source = 0;        // index into Function::sources
  mutable std::uint32_t hint = 0;  // the allocation accessed last

  const Operand& operator[](std::size_t i) const { return operands[i]; }
};

enum class Shuffle : std::uint8_t { up, down, butterfly, index };
enum class Vote : std::uint8_t { all, any, uniform, ballot };
enum class Match : std::uint8_t { any, all };
enum class Update : std::uint8_t {
  add,
  minimum,
  maximum,
  exchange,
  compare,
  conjunction,
  disjunction,
  exclusive,
  increment,
  decrement
};
enum class CopyWait : std::uint8_t { groups, all };
enum class Arrival : std::uint8_t {
  initialise,
  arrive,
  expect,
  arrive_expect,
  after_copies,       // after the copies of the thread: cp.async.mbarrier.arrive.noinc
  also_after_copies,  // ... if the mbarrier does not expect this arrival
  wait,
  invalidate
};
enum class ProductFlag : std::uint8_t { transpose_a = 1, transpose_b = 2, negate_a = 4, negate_b = 8 };

/// A line of the source, from `.loc`.
struct Line {
  std::uint32_t file = 0, line = 0, column = 0;
  auto operator<=>(const Line&) const = default;
};

/// The origin of an instruction: its name in PTX, its line of the source, and the line of the call into which the
/// compiler inlined it (the outermost call; line 0 if there is none).
struct Source {
  std::string_view text;
  std::uint32_t ptx_line = 0;
  Line line, inlined_at;
  std::string_view refusal_reason = {};
};

struct Parameter {
  std::string name;
  std::size_t offset = 0, size = 0;
};

struct Module;

/// A kernel, together with the functions that it calls. Their code follows the code of the kernel. Recursion is
/// refused, so their registers, locals and parameters have fixed places next to those of the kernel.
struct Function {
  std::string name;
  const Module* module = nullptr;
  std::vector<Parameter> parameters;
  std::size_t parameters_bytes = 0;
  std::size_t shared_bytes = 0;    // size of the static shared variables
  std::size_t dynamic_shared = 0;  // where dynamic shared memory begins
  std::size_t local_bytes = 0;     // size for one thread, including parameters of calls
  int max_threads = 1024;          // .maxntid

  /// A row that holds the same value in every lane: an immediate, the address of a variable.
  struct Constant {
    std::uint32_t row;
    std::uint8_t bits;
    std::uint64_t value;
  };
  /// A special register such as %tid.x.
  enum class Special : std::uint8_t {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid,
    nwarpid,
    smid,
    nsmid,
    lanemask_eq,
    lanemask_le,
    lanemask_lt,
    lanemask_ge,
    lanemask_gt,
    dynamic_smem_size,
    total_smem_size,
  };
  struct SpecialRow {
    std::uint32_t row;
    Special special;
  };

  /// The copy of one argument to a parameter, by `call`, or of one result back to the caller, by the return.
  struct Copy {
    std::uint32_t to, from, bytes;  // offsets and size in local memory
  };
  struct Call {
    std::uint32_t target = 0;
    std::uint32_t return_row = 0;  // the row in which the callee finds the number of this call
    std::uint32_t resume = 0;      // the instruction after the call
    std::vector<Copy> arguments, results;
  };

  std::vector<Instruction> code;
  std::vector<Source> sources;
  std::vector<std::vector<std::uint32_t>> branch_tables;
  std::vector<Call> calls;
  std::vector<Constant> constants;
  std::vector<SpecialRow> specials;
  std::uint32_t registers_bytes = 0;  // the part of the register file that is poisoned when a Warp is constructed
  std::uint32_t file_bytes = 0;       // the whole register file of a warp
  std::vector<std::unique_ptr<Operand[]>> operand_storage;
};

/// A variable of .global or .const space; its memory belongs to the module.
struct Variable {
  std::uintptr_t address = 0;
  std::size_t size = 0;
};

/// The module that reader.hpp makes from one PTX text. A kernel is decoded when it is first needed.
struct Module {
  Module();
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Returns the mangled names of the kernels, as in PTX.
  std::vector<std::string> kernels() const;

  /// @throws Fault if its code contains an unknown construct
  /// @returns nullptr if there is no such kernel
  const Function* find(const std::string& kernel) const;

  std::map<std::string, Variable> variables;
  std::map<std::uint32_t, std::string> files;  // from `.file`

  struct Text;
  std::unique_ptr<Text> text;  // the text that is not decoded yet
};

}  // namespace gatefold::cuda_emulator
