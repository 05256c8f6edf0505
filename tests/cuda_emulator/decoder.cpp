#include "cuda_emulator/decoder.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/lexer.hpp"
#include "cuda_emulator/mnemonic.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

using Special = Function::Special;

std::optional<Special> special_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Special> table[] = {
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
  };
  for (const auto& [text, special] : table) {
    if (text == name) return special;
  }
  return std::nullopt;
}

/// Rows of the register file that are filled before the code runs follow the registers, whose number is known at the end
/// of decoding; until then this bit tells them apart.
constexpr std::uint32_t filled_row = 0x80000000;

constexpr std::uint32_t row_bytes(int bits) { return bits == 1 ? 4 : warp_size * (bits == 64 ? 8 : bits == 128 ? 16 : 4); }

/// Where a function's parameters and results lie in local memory, and where its code begins.
struct Frame {
  std::uint32_t entry = 0, return_row = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> results, arguments;  // offset, bytes
};

class Decoder {
 public:
  Decoder(const Module& module, const std::string& kernel) : module_(module), function_(std::make_unique<Function>()) {
    function_->module = &module;
    function_->name = kernel;
    body(kernel);
  }

  std::unique_ptr<Function> decode() {
    while (!pending_.empty()) {
      const std::string callee = pending_.back();
      pending_.pop_back();
      body(callee);
    }
    refuse_recursion();
    finish();
    return std::move(function_);
  }

 private:
  // ------------------------------------------------------------------------------------------------ places and names

  struct Register {
    std::uint32_t row;
    std::uint8_t bits;
  };
  /// `.reg .b32 %r<10>;` names %r0 ... %r9.
  struct Range {
    std::string_view prefix;
    std::uint32_t first, count, stride;
    std::uint8_t bits;
  };
  /// A variable of the function: .shared, .local, or .param, be it of the kernel or for a call.
  struct Local {
    Space space;
    std::uint64_t address;
    std::uint32_t bytes;
  };
  struct Scope {
    std::unordered_map<std::string_view, Register> registers;
    std::vector<Range> ranges;
    std::unordered_map<std::string_view, Local> variables;
  };

  std::uint32_t new_row(int bits) {
    if (bits == 1) {  // gathered, so that other rows stay aligned
      if (predicates_ % 32 == 0) predicate_chunk_ = std::exchange(registers_end_, registers_end_ + 128);
      return predicate_chunk_ + 4 * (predicates_++ % 32);
    }
    return std::exchange(registers_end_, registers_end_ + row_bytes(bits));
  }

  std::uint32_t filled(int bits) { return std::exchange(filled_end_, filled_end_ + row_bytes(bits)) | filled_row; }

  Operand constant(std::uint64_t value, int bits, bool after_static_shared = false) {
    if (bits == 1) value = value ? ~std::uint64_t{0} : 0;
    if (bits < 64) value &= 0xffffffff;
    const auto storage = static_cast<std::uint8_t>(bits == 64 ? 64 : bits == 1 ? 1 : 32);
    const auto [known, fresh] = constants_.try_emplace({value, storage, after_static_shared}, 0);
    if (fresh) {
      known->second = filled(storage == 1 ? 32 : storage);
      function_->constants.push_back({known->second, storage, value});
      if (after_static_shared) dynamic_constants_.push_back(function_->constants.size() - 1);
    }
    return {known->second, static_cast<std::uint8_t>(bits)};
  }

  Operand special(Special which, int bits) {
    const auto [known, fresh] = specials_.try_emplace(which, 0);
    if (fresh) {
      known->second = filled(32);
      function_->specials.push_back({known->second, which});
    }
    return {known->second, static_cast<std::uint8_t>(std::min(bits, 32))};
  }

  std::optional<Operand> find_register(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto single = scope->registers.find(name);
      if (single != scope->registers.end()) return Operand{single->second.row, single->second.bits};
      const std::size_t digits = name.find_last_not_of("0123456789") + 1;
      if (digits == name.size() || name.size() - digits > 8) continue;
      for (const Range& range : scope->ranges) {
        if (range.prefix != name.substr(0, digits)) continue;
        const auto number = static_cast<std::uint32_t>(std::stoul(std::string(name.substr(digits))));
        if (number < range.count) return Operand{range.first + number * range.stride, range.bits};
      }
    }
    return std::nullopt;
  }

  const Local* find_variable(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }

  /// The address of a variable as a row. A shared variable of the module takes its place where it is first used.
  std::optional<Operand> address_of(std::string_view name, int bits) {
    if (const Local* local = find_variable(name)) return constant(local->address, bits);
    const auto variable = module_.variables.find(std::string(name));
    if (variable != module_.variables.end()) return constant(variable->second.address, bits);
    const auto shared = module_.text->shared.find(name);
    if (shared == module_.text->shared.end()) return std::nullopt;
    if (shared->second.dynamic) {
      dynamic_alignment_ = std::max(dynamic_alignment_, shared->second.alignment);
      return constant(0, bits, true);
    }
    const std::uint64_t address = place_shared(shared->second.size, shared->second.alignment);
    scopes_.front().variables[shared->first] = {Space::shared, address, 0};
    module_shared_[shared->first] = address;
    return constant(address, bits);
  }

  std::uint64_t place_shared(std::size_t bytes, std::size_t alignment) {
    const std::size_t address = aligned(function_->shared_bytes, alignment);
    function_->shared_bytes = address + bytes;
    return address;
  }

  std::uint32_t place_local(std::size_t bytes, std::size_t alignment) {
    const std::size_t address = aligned(function_->local_bytes, alignment);
    function_->local_bytes = address + bytes;
    return static_cast<std::uint32_t>(address);
  }

  // ---------------------------------------------------------------------------------------------- bodies of functions

  void body(const std::string& name) {
    const auto place = module_.text->places.find(name)->second;
    is_kernel_ = place.kernel;
    caller_ = name;
    lexer_.emplace(std::string_view(module_.text->ptx), place.position, place.line);
    scopes_.assign(1, {});
    for (const auto& [shared, address] : module_shared_) scopes_.front().variables[shared] = {Space::shared, address, 0};
    labels_.clear();
    tables_.clear();

    Frame& frame = frames_[name];
    return_row_ = frame.return_row;
    if (lexer_->accept("(")) formal_parameters(&frame.results);
    lexer_->expect(name);
    if (lexer_->accept("(")) formal_parameters(is_kernel_ ? nullptr : &frame.arguments);
    while (!lexer_->is("{")) {
      if (lexer_->accept(".maxntid")) {
        int threads = 1;
        do threads *= static_cast<int>(lexer_->number());
        while (lexer_->accept(","));
        if (is_kernel_) function_->max_threads = threads;
      } else {
        lexer_->take();  // .reqntid is enforced by the driver; .minnctapersm and others concern ptxas
      }
    }
    frame.entry = static_cast<std::uint32_t>(function_->code.size());
    lexer_->take();
    for (int depth = 1; depth > 0;) {
      if (lexer_->accept("{")) {
        ++depth;
        scopes_.emplace_back();
      } else if (lexer_->accept("}")) {
        --depth;
        if (depth > 0) scopes_.pop_back();
      } else {
        statement();
      }
    }
    Mnemonic end("ret");  // falling off the end returns
    Instruction in;
    function_return(end, in);
    emit(in, end.text);
    resolve_labels();
  }

  /// Parameters of the kernel lie in the buffer of the launch (`frame` is nullptr), those of functions in local memory.
  void formal_parameters(std::vector<std::pair<std::uint32_t, std::uint32_t>>* frame) {
    while (!lexer_->accept(")")) {
      lexer_->expect(".param");
      const Declaration declaration = read_declaration(*lexer_);
      const auto bytes = static_cast<std::uint32_t>(declaration.size());
      if (frame != nullptr) {
        const std::uint32_t offset = place_local(bytes, declaration.alignment);
        frame->emplace_back(offset, bytes);
        scopes_.front().variables[declaration.name] = {Space::local, offset, bytes};
      } else {
        const std::size_t offset = aligned(function_->parameters_bytes, declaration.alignment);
        function_->parameters.push_back({std::string(declaration.name), offset, bytes});
        function_->parameters_bytes = offset + bytes;
        scopes_.front().variables[declaration.name] = {Space::parameter, offset, bytes};
      }
      lexer_->accept(",");
    }
  }

  void statement() {
    Lexer& lexer = *lexer_;
    if (lexer.accept(";")) return;
    if (lexer.accept(".loc")) return location();
    if (lexer.accept(".reg")) return registers();
    if (lexer.is(".shared") || lexer.is(".local") || lexer.is(".param")) return variable();
    if (lexer.is(".pragma")) return lexer.skip_statement();
    if (lexer.before_colon()) return label();
    if (lexer.token().starts_with('.')) lexer.fail("a directive that the emulator knows");
    instruction();
  }

  /// `.loc file line column`, perhaps with `, function_name label + 8, inlined_at file line column`.
  void location() {
    line_ = read_line();
    Line caller;
    while (lexer_->accept(",")) {
      if (lexer_->accept("inlined_at")) {
        caller = read_line();
      } else {
        lexer_->take();
        lexer_->take();
        if (lexer_->accept("+")) lexer_->number();
      }
    }
    callers_of_lines_[line_] = caller;
    // The place that a function was inlined at may itself lie in an inlined function.
    inlined_at_ = caller;
    for (int depth = 0; depth < 64; ++depth) {
      const auto next = callers_of_lines_.find(inlined_at_);
      if (next == callers_of_lines_.end() || next->second.line == 0) break;
      inlined_at_ = next->second;
    }
  }

  Line read_line() {
    Line line;
    for (std::uint32_t* part : {&line.file, &line.line, &line.column}) *part = static_cast<std::uint32_t>(lexer_->number());
    return line;
  }

  void registers() {
    const auto type = type_named(lexer_->token().substr(1));
    if (!type) lexer_->fail("a type");
    lexer_->take();
    const auto bits = static_cast<std::uint8_t>(std::max<int>(type->bits, type->kind == Kind::predicate ? 1 : 16));
    do {
      const std::string_view name = lexer_->take();
      if (lexer_->accept("<")) {
        const auto count = static_cast<std::uint32_t>(lexer_->number());
        lexer_->expect(">");
        const std::uint32_t stride = row_bytes(bits), bytes = stride * count;
        const std::uint32_t first = std::exchange(registers_end_, registers_end_ + (bytes + 127) / 128 * 128);
        scopes_.back().ranges.push_back({name, first, count, stride, bits});
      } else {
        scopes_.back().registers[name] = {new_row(bits), bits};
      }
    } while (lexer_->accept(","));
    lexer_->expect(";");
  }

  void variable() {
    const std::string_view space = lexer_->take();
    const Declaration declaration = read_declaration(*lexer_);
    const auto bytes = static_cast<std::uint32_t>(declaration.size());
    Local& local = scopes_.back().variables[declaration.name];
    if (space == ".shared") {
      local = {Space::shared, place_shared(bytes, declaration.alignment), bytes};
    } else {
      local = {Space::local, place_local(bytes, declaration.alignment), bytes};
    }
    lexer_->expect(";");
  }

  void label() {
    const std::string_view name = lexer_->take();
    lexer_->expect(":");
    if (lexer_->accept(".branchtargets")) {
      do tables_[name].push_back(lexer_->take());
      while (lexer_->accept(","));
      lexer_->expect(";");
    } else if (lexer_->is(".calltargets") || lexer_->is(".callprototype")) {
      lexer_->skip_statement();  // the call that names it is refused
    } else {
      labels_[name] = static_cast<std::uint32_t>(function_->code.size());
    }
  }

  /// Branches have kept the number of the label's name in `target`.
  void resolve_labels() {
    auto position = [&](std::string_view name) {
      const auto found = labels_.find(name);
      if (found == labels_.end()) throw Fault("PTX: no label '" + std::string(name) + "' in " + demangled(caller_));
      return found->second;
    };
    for (const auto& [index, name] : branches_) {
      Instruction& in = function_->code[index];
      if (in.op == Opcode::branch) {
        in.target = position(name);
      } else {
        std::vector<std::uint32_t> targets;
        for (const std::string_view target : tables_[name]) targets.push_back(position(target));
        in.target = static_cast<std::uint32_t>(function_->branch_tables.size());
        function_->branch_tables.push_back(std::move(targets));
      }
    }
    branches_.clear();
  }

  // ----------------------------------------------------------------------------------------------------- instructions

  void emit(Instruction in, std::string_view text, std::string_view reason = {}) {
    in.source = static_cast<std::uint32_t>(function_->sources.size());
    function_->sources.push_back({text, lexer_->line(), line_, inlined_at_, reason});
    in.count = static_cast<std::uint8_t>(operands_.size());
    auto storage = std::make_unique<Operand[]>(operands_.size());
    std::copy(operands_.begin(), operands_.end(), storage.get());
    in.operands = storage.get();
    function_->operand_storage.push_back(std::move(storage));
    function_->code.push_back(in);
    operands_.clear();
  }

  /// What makes one instruction unknown, where the rest of the text can still be read.
  struct Refused {
    std::string_view reason;
  };

  void instruction() {
    Instruction in;
    operands_.clear();
    if (lexer_->accept("@")) {
      in.negative = lexer_->accept("!");
      const auto guard = find_register(lexer_->token());
      if (!guard || guard->bits != 1) lexer_->fail("a predicate");
      lexer_->take();
      in.guard = guard->row;
    }
    Mnemonic mnemonic(lexer_->take());
    in.type = mnemonic.type();
    const Lexer operands_begin = *lexer_;
    try {
      operands_of(mnemonic, in);
      if (!mnemonic.modifiers.empty()) throw Refused{"a modifier that the emulator does not know"};
      if (!lexer_->is(";")) throw Refused{"operands that the emulator does not know"};
      emit(in, mnemonic.text);
    } catch (const Refused& refused) {
      in.op = Opcode::refused;
      *lexer_ = operands_begin;
      operands_.clear();
      emit(in, mnemonic.text, refused.reason);
      lexer_->skip_statement();
      return;
    }
    lexer_->expect(";");
  }

  void comma() {
    if (!lexer_->accept(",")) throw Refused{"fewer operands than the emulator expects"};
  }

  /// The next operand of the text: a register or a value of `bits`; 0: a register of any width.
  Operand operand(int bits) {
    const bool negated = lexer_->accept("!");
    if (lexer_->is_number() || lexer_->is("-")) {
      const Operand value = constant(lexer_->number(), bits == 0 ? 64 : bits);
      return value;
    }
    const std::string_view name = lexer_->token();
    if (name == "_") {
      lexer_->take();
      return scratch(bits);
    }
    if (auto found = find_register(name)) {
      if (bits != 0 && found->bits != bits) throw Refused{"a register of another width than the emulator expects"};
      lexer_->take();
      found->negated = negated;
      return *found;
    }
    if (name == "WARP_SZ") {
      lexer_->take();
      return constant(warp_size, bits == 0 ? 32 : bits);
    }
    if (const auto which = special_named(name)) {
      if (bits == 64) throw Refused{"a special register of another width than the emulator expects"};
      lexer_->take();
      return special(*which, 32);
    }
    if (const auto address = address_of(name, bits == 0 ? 64 : bits)) {
      lexer_->take();
      if (!lexer_->is("+")) return *address;
      throw Refused{"an address with an offset where the emulator expects a register"};
    }
    throw Refused{name.starts_with('%') ? "a register that the emulator does not know"
                                        : "an operand that the emulator does not know"};
  }

  /// Where results go that nobody reads.
  Operand scratch(int bits) {
    const int storage = bits == 1 ? 1 : 64;
    const auto [known, fresh] = scratch_.try_emplace(storage, 0);
    if (fresh) known->second = new_row(storage);
    return {known->second, static_cast<std::uint8_t>(bits == 0 ? 32 : bits)};
  }

  void add(int bits) { operands_.push_back(operand(bits)); }

  /// `|q` after a destination.
  void add_second_predicate() { operands_.push_back(lexer_->accept("|") ? operand(1) : scratch(1)); }

  /// One register, or the registers of a vector; @returns how many.
  std::uint8_t add_vector(int bits) {
    if (!lexer_->accept("{")) {
      add(bits);
      return 1;
    }
    std::uint8_t elements = 0;
    do {
      add(bits);
      ++elements;
    } while (lexer_->accept(","));
    lexer_->expect("}");
    return elements;
  }

  /// `[%rd1+16]`, `[name+8]`, `[128]`
  ///
  /// @param space  that of parameters turns to local where the variable is one of a call
  /// @returns the offset
  std::int64_t add_address(Space& space) {
    lexer_->expect("[");
    if (const auto base = find_register(lexer_->token())) {
      lexer_->take();
      operands_.push_back(*base);
    } else if (lexer_->is_number()) {
      operands_.push_back(constant(lexer_->number(), 64));
    } else {
      const Local* local = find_variable(lexer_->token());
      // Parameters of functions and of calls are local variables.
      if (space == Space::parameter && local != nullptr) space = local->space;
      const auto address = address_of(lexer_->token(), 64);
      if (!address) throw Refused{"an address that the emulator does not know"};
      lexer_->take();
      operands_.push_back(*address);
    }
    std::int64_t offset = 0;
    while (lexer_->is("+") || lexer_->is("-")) offset += static_cast<std::int64_t>(lexer_->number());
    lexer_->expect("]");
    return offset;
  }

  void take_space(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Space> spaces[] = {
        {"global", Space::global},          {"shared", Space::shared},          {"shared::cta", Space::shared},
        {"shared::cluster", Space::shared}, {"local", Space::local},            {"param", Space::parameter},
        {"param::entry", Space::parameter}, {"param::func", Space::parameter},  {"const", Space::constant},
    };
    in.space = mnemonic.choose(spaces).value_or(Space::generic);
  }

  /// Memory semantics, scope and hints for caches. What is not weak does not race with its like.
  static void take_ordering(Mnemonic& mnemonic, Instruction& in) {
    for (const auto* semantics : {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc"}) {
      if (mnemonic.take(semantics)) in.strong = true;
    }
    for (const auto* other : {"weak", "cta", "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}) {
      mnemonic.take(other);
    }
    mnemonic.drop("L1::");
    mnemonic.drop("L2::");
  }

  static std::uint8_t take_elements(Mnemonic& mnemonic) {
    return mnemonic.take("v2") ? 2 : mnemonic.take("v4") ? 4 : mnemonic.take("v8") ? 8 : 1;
  }

  void operands_of(Mnemonic& mnemonic, Instruction& in) {
    const std::string_view root = mnemonic.root;
    for (const auto& [name, decode] : table_) {
      if (name == root) return (this->*decode)(mnemonic, in);
    }
    if (const auto chosen = select_arithmetic(mnemonic, in)) return arithmetic(*chosen, in);
    static constexpr std::string_view tensor[] = {"mma", "wmma", "wgmma", "tcgen05", "ldmatrix", "stmatrix", "movmatrix"};
    if (std::find(std::begin(tensor), std::end(tensor), root) != std::end(tensor)) {
      throw Refused{"tensor cores are not modelled"};
    }
    static constexpr std::string_view textures[] = {"tex", "tld4", "txq", "suld", "sust", "sured", "suq"};
    if (std::find(std::begin(textures), std::end(textures), root) != std::end(textures)) {
      throw Refused{"textures and surfaces are not modelled"};
    }
    if (root == "mapa" || root == "getctarank") throw Refused{"clusters are not modelled"};
    throw Refused{"an instruction that the emulator does not know"};
  }

  void arithmetic(const Arithmetic& chosen, Instruction& in) {
    if (chosen.execute == nullptr) throw Refused{"a type or modifier that the emulator does not know for it"};
    in.op = Opcode::arithmetic;
    in.execute = chosen.execute;
    const int bits = in.type.packed ? 32 : in.type.bits;
    bool first = true;
    for (const char kind : chosen.operands) {
      if (kind == 'q') {
        add_second_predicate();
        continue;
      }
      if (kind == 'c') {
        operands_.push_back(carry());
        continue;
      }
      if (kind == 'o' && !lexer_->is(",")) {
        operands_.push_back(constant(1, 1));
        continue;
      }
      if (!std::exchange(first, false)) comma();
      add(kind == 't' ? bits : kind == 'w' ? 2 * bits : kind == '4' ? 32 : kind == '8' ? 64 : kind == 'a' ? 0 : 1);
    }
  }

  Operand carry() {
    if (!carry_) carry_ = new_row(1);
    return {*carry_, 1};
  }

  void move(Mnemonic&, Instruction& in) {
    in.op = Opcode::arithmetic;
    const int bits = in.type.bits;
    if (bits == 128) throw Refused{"registers of 128 bits are not modelled"};
    if (lexer_->is("{")) {
      in.elements = add_vector(0);
      comma();
      add(bits);
      in.execute = &unpack;
    } else {
      add(bits);
      comma();
      if (lexer_->is("%clock") || lexer_->is("%clock64") || lexer_->is("%clock_hi") || lexer_->is("%globaltimer") ||
          lexer_->is("%globaltimer_lo")) {
        lexer_->take();
        in.op = Opcode::clock;
      } else if (lexer_->is("{")) {
        in.elements = add_vector(0);
        in.execute = &pack;
      } else {
        address_or_register(bits);
        in.execute = select_move(in.type);
      }
    }
    if (in.elements > 1 && (bits % in.elements != 0 || bits / in.elements > 32 || bits / in.elements < 8)) {
      throw Refused{"a vector that the emulator does not know"};
    }
  }

  /// `mov.u64 %rd1, name+16;`
  void address_or_register(int bits) {
    if (!find_register(lexer_->token()) && address_of(lexer_->token(), bits)) {
      const std::string_view name = lexer_->take();
      const std::int64_t offset = lexer_->is("+") ? static_cast<std::int64_t>(lexer_->number()) : 0;
      const Operand base = *address_of(name, bits);
      if (offset == 0) {
        operands_.push_back(base);
        return;
      }
      for (const Function::Constant& known : function_->constants) {
        if (known.row != base.row) continue;
        const bool dynamic = std::any_of(dynamic_constants_.begin(), dynamic_constants_.end(), [&](std::size_t i) {
          return function_->constants[i].row == base.row;
        });
        operands_.push_back(constant(known.value + static_cast<std::uint64_t>(offset), bits, dynamic));
        return;
      }
    }
    add(bits);
  }

  void load(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::load;
    take_space(mnemonic, in);
    take_ordering(mnemonic, in);
    in.elements = take_elements(mnemonic);
    if (in.type.bits > 64) throw Refused{"registers of 128 bits are not modelled"};
    if (add_vector(0) != in.elements) throw Refused{"a vector that the emulator does not know"};
    comma();
    in.offset = add_address(in.space);
    cache_hint();
  }

  void store(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::store;
    take_space(mnemonic, in);
    take_ordering(mnemonic, in);
    in.elements = take_elements(mnemonic);
    if (in.type.bits > 64) throw Refused{"registers of 128 bits are not modelled"};
    in.offset = add_address(in.space);
    comma();
    if (add_vector(0) != in.elements) throw Refused{"a vector that the emulator does not know"};
    cache_hint();
  }

  void cache_hint() {
    if (lexer_->accept(",")) operand(64);
  }

  void atomic(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Update> updates[] = {
        {"add", Update::add},          {"min", Update::minimum},     {"max", Update::maximum},   {"exch", Update::exchange},
        {"cas", Update::compare},      {"and", Update::conjunction}, {"or", Update::disjunction}, {"xor", Update::exclusive},
        {"inc", Update::increment},    {"dec", Update::decrement},
    };
    in.op = Opcode::atomic;
    take_space(mnemonic, in);
    take_ordering(mnemonic, in);
    mnemonic.take("noftz");
    in.strong = true;
    const auto update = mnemonic.choose(updates);
    if (!update || in.type.packed || in.type.bits > 64) throw Refused{"an atomic operation that the emulator does not know"};
    if (in.type.bits == 16 && *update != Update::compare && *update != Update::exchange && *update != Update::add) {
      throw Refused{"an atomic operation that the emulator does not know"};
    }
    in.mode = static_cast<std::uint8_t>(*update);
    const int bits = in.type.bits;
    if (mnemonic.root == "red") {
      operands_.push_back(scratch(bits));
    } else {
      add(bits);
      comma();
    }
    in.offset = add_address(in.space);
    comma();
    if (lexer_->is("{")) throw Refused{"atomic operations on vectors are not modelled"};
    add(bits);
    if (*update == Update::compare) {
      comma();
      add(bits);
    }
    cache_hint();
  }

  /// cp.async copies at once; waiting for it is nothing to do.
  void copy(Mnemonic& mnemonic, Instruction& in) {
    if (!mnemonic.take("async")) throw Refused{"a copy that the emulator does not know"};
    const bool bulk = mnemonic.take("bulk");
    if (mnemonic.take("commit_group") || mnemonic.take("wait_all")) {
      in.op = Opcode::nothing;
      return;
    }
    if (mnemonic.take("wait_group")) {
      mnemonic.take("read");
      in.op = Opcode::nothing;
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

  /// An address without offset, for instructions that have several.
  void plain_address() {
    Space space = Space::generic;
    if (add_address(space) != 0) throw Refused{"an offset that the emulator does not know"};
  }

  void memory_barrier(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::mbarrier;
    take_space(mnemonic, in);
    if (in.space == Space::generic) in.space = Space::shared;
    take_ordering(mnemonic, in);
    in.strong = true;
    static constexpr std::pair<std::string_view, Arrival> operations[] = {
        {"init", Arrival::initialise}, {"inval", Arrival::invalidate}, {"try_wait", Arrival::wait},
        {"test_wait", Arrival::wait},  {"arrive", Arrival::arrive},    {"expect_tx", Arrival::expect},
    };
    auto operation = mnemonic.choose(operations);
    if (!operation) throw Refused{"an operation on mbarriers that the emulator does not know"};
    if (*operation == Arrival::arrive && mnemonic.take("expect_tx")) operation = Arrival::arrive_expect;
    const bool parity = mnemonic.take("parity");
    in.mode = static_cast<std::uint8_t>(*operation);
    in.elements = parity;
    switch (*operation) {
      case Arrival::initialise:
        plain_address();
        comma();
        add(32);
        break;
      case Arrival::invalidate: plain_address(); break;
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
        if (lexer_->accept(",")) operand(32);  // for how long to wait
        break;
    }
  }

  void convert_address(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::cvta;
    in.mode = mnemonic.take("to");
    take_space(mnemonic, in);
    if (in.type.bits != 64) throw Refused{"addresses of 32 bits are not modelled"};
    add(64);
    comma();
    address_or_register(64);
  }

  void is_space(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::isspacep;
    take_space(mnemonic, in);
    add(1);
    comma();
    add(64);
  }

  void active_mask(Mnemonic&, Instruction& in) {
    in.op = Opcode::activemask;
    add(32);
  }

  void branch(Mnemonic& mnemonic, Instruction& in) {
    mnemonic.take("uni");
    if (mnemonic.take("idx")) {
      in.op = Opcode::branch_indexed;
      add(32);
      comma();
    } else {
      in.op = Opcode::branch;
    }
    branches_.emplace_back(function_->code.size(), lexer_->take());
  }

  void function_return(Mnemonic& mnemonic, Instruction& in) {
    mnemonic.take("uni");
    in.op = is_kernel_ ? Opcode::exit : Opcode::function_return;
    if (!is_kernel_) operands_.push_back({return_row_, 32});
  }

  void leave(Mnemonic&, Instruction& in) { in.op = Opcode::exit; }
  void trap(Mnemonic&, Instruction& in) { in.op = Opcode::trap; }

  /// `call.uni (result), name, (argument, ...);`
  void call(Mnemonic& mnemonic, Instruction& in) {
    mnemonic.take("uni");
    Function::Call record;
    std::vector<Local> results = actual_parameters();
    if (!results.empty()) comma();
    const std::string name(lexer_->take());
    std::vector<Local> arguments;
    if (lexer_->accept(",")) arguments = actual_parameters();
    if (lexer_->is(",")) throw Refused{"calls through pointers are not modelled"};
    in.target = static_cast<std::uint32_t>(function_->calls.size());
    if (name == "__assertfail") {
      in.op = Opcode::assertion;
      for (const Local& argument : arguments) {
        record.arguments.push_back({0, static_cast<std::uint32_t>(argument.address), argument.bytes});
      }
      function_->calls.push_back(std::move(record));
      return;
    }
    const auto place = module_.text->places.find(name);
    if (place == module_.text->places.end()) throw Refused{"calls through pointers are not modelled"};
    if (!place->second.defined) throw Refused{"calls of functions of the driver (printf, malloc) are not modelled"};
    in.op = Opcode::call;
    callers_[caller_].insert(name);
    if (frames_.try_emplace(name).second) {
      frames_[name].return_row = new_row(32);
      pending_.push_back(name);
    }
    actual_.push_back({in.target, name, std::move(arguments), std::move(results)});
    function_->calls.push_back(std::move(record));
  }

  std::vector<Local> actual_parameters() {
    std::vector<Local> parameters;
    if (!lexer_->accept("(")) return parameters;
    while (!lexer_->accept(")")) {
      const Local* local = find_variable(lexer_->token());
      if (local == nullptr) throw Refused{"an argument that the emulator does not know"};
      lexer_->take();
      parameters.push_back(*local);
      lexer_->accept(",");
    }
    return parameters;
  }

  void barrier(Mnemonic& mnemonic, Instruction& in) {
    if (mnemonic.take("warp")) {
      mnemonic.take("sync");
      in.op = Opcode::warp_barrier;
      add(32);
      return;
    }
    if (mnemonic.take("cluster")) throw Refused{"clusters are not modelled"};
    mnemonic.take("cta");
    in.aligned = mnemonic.root == "bar" || mnemonic.take("aligned");  // aligned: all threads of a warp together
    if (mnemonic.take("arrive")) throw Refused{"barriers that only arrive are not modelled"};
    if (mnemonic.take("red")) {
      static constexpr std::pair<std::string_view, Vote> reductions[] = {
          {"and", Vote::all}, {"or", Vote::any}, {"popc", Vote::ballot}};
      in.op = Opcode::barrier_reduce;
      in.mode = static_cast<std::uint8_t>(mnemonic.choose(reductions).value_or(Vote::ballot));
      add(static_cast<Vote>(in.mode) == Vote::ballot ? 32 : 1);
      comma();
    } else {
      mnemonic.take("sync");
      in.op = Opcode::barrier;
      operands_.push_back(scratch(32));
    }
    // [result, number, threads or none, predicate]
    add(32);
    Operand threads;
    if (in.op == Opcode::barrier_reduce) {
      comma();
      const auto first = find_register(lexer_->is("!") ? "" : lexer_->token());
      if (!lexer_->is("!") && (!first || first->bits != 1)) {
        threads = operand(32);
        comma();
      }
      operands_.push_back(threads);
      add(1);
    } else {
      if (lexer_->accept(",")) threads = operand(32);
      operands_.push_back(threads);
    }
  }

  void shuffle(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Shuffle> modes[] = {
        {"up", Shuffle::up}, {"down", Shuffle::down}, {"bfly", Shuffle::butterfly}, {"idx", Shuffle::index}};
    in.op = Opcode::shuffle;
    if (!mnemonic.take("sync")) throw Refused{"collectives without .sync are not modelled"};
    in.mode = static_cast<std::uint8_t>(mnemonic.choose(modes).value_or(Shuffle::index));
    add(32);
    add_second_predicate();
    for (int i = 0; i < 4; ++i) {
      comma();
      add(32);
    }
  }

  void vote(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Vote> modes[] = {
        {"all", Vote::all}, {"any", Vote::any}, {"uni", Vote::uniform}, {"ballot", Vote::ballot}};
    in.op = Opcode::vote;
    if (!mnemonic.take("sync")) throw Refused{"collectives without .sync are not modelled"};
    const Vote mode = mnemonic.choose(modes).value_or(Vote::ballot);
    in.mode = static_cast<std::uint8_t>(mode);
    add(mode == Vote::ballot ? 32 : 1);
    comma();
    add(1);
    comma();
    add(32);
  }

  void match(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Match> modes[] = {{"any", Match::any}, {"all", Match::all}};
    in.op = Opcode::match;
    mnemonic.take("sync");
    in.mode = static_cast<std::uint8_t>(mnemonic.choose(modes).value_or(Match::any));
    add(32);
    add_second_predicate();
    comma();
    add(in.type.bits);
    comma();
    add(32);
  }

  void reduce(Mnemonic& mnemonic, Instruction& in) {
    static constexpr std::pair<std::string_view, Update> operations[] = {
        {"add", Update::add},         {"min", Update::minimum},    {"max", Update::maximum},
        {"and", Update::conjunction}, {"or", Update::disjunction}, {"xor", Update::exclusive}};
    in.op = Opcode::reduce;
    mnemonic.take("sync");
    const auto operation = mnemonic.choose(operations);
    if (!operation || in.type.bits != 32 || in.type.floating()) throw Refused{"a reduction that the emulator does not know"};
    in.mode = static_cast<std::uint8_t>(*operation);
    for (int i = 0; i < 3; ++i) {
      if (i > 0) comma();
      add(32);
    }
  }

  void elect(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::elect;
    mnemonic.take("sync");
    add(32);
    add_second_predicate();
    comma();
    add(32);
  }

  /// Fences, hints and sleep: blocks run one after another on coherent memory.
  void nothing(Mnemonic& mnemonic, Instruction& in) {
    in.op = Opcode::nothing;
    in.mode = mnemonic.root == "nanosleep";  // lets others run
    mnemonic.modifiers.clear();
    while (!lexer_->is(";")) {
      if (lexer_->at_end()) lexer_->fail("';'");
      lexer_->take();
    }
  }

  // ------------------------------------------------------------------------------------------------------- completion

  void refuse_recursion() {
    std::set<std::string> open, done;
    auto visit = [&](auto& self, const std::string& name) -> void {
      if (done.count(name)) return;
      if (!open.insert(name).second) {
        throw Fault("PTX: " + demangled(name) + " calls itself: recursion is not modelled, in kernel " +
                    demangled(function_->name));
      }
      for (const std::string& callee : callers_[name]) self(self, callee);
      open.erase(name);
      done.insert(name);
    };
    visit(visit, function_->name);
  }

  void finish() {
    Function& f = *function_;
    for (const Actual& actual : actual_) {
      const Frame& frame = frames_[actual.name];
      Function::Call& call = f.calls[actual.call];
      call.target = frame.entry;
      call.return_row = frame.return_row;
      auto copies = [&](std::vector<Function::Copy>& list, const auto& formal, const std::vector<Local>& given,
                        bool to_formal) {
        if (formal.size() != given.size()) throw Fault("PTX: wrong number of arguments for " + demangled(actual.name));
        for (std::size_t i = 0; i < formal.size(); ++i) {
          const auto here = static_cast<std::uint32_t>(given[i].address);
          const std::uint32_t bytes = std::min(formal[i].second, given[i].bytes);
          list.push_back(to_formal ? Function::Copy{formal[i].first, here, bytes}
                                   : Function::Copy{here, formal[i].first, bytes});
        }
      };
      copies(call.arguments, frame.arguments, actual.arguments, true);
      copies(call.results, frame.results, actual.results, false);
    }
    for (std::uint32_t i = 0; i < f.code.size(); ++i) {
      if (f.code[i].op == Opcode::call) f.calls[f.code[i].target].resume = i + 1;
    }
    // Dynamic shared memory follows the static variables.
    const std::uint64_t dynamic = aligned(f.shared_bytes, std::max<std::size_t>(dynamic_alignment_, 16));
    for (const std::size_t i : dynamic_constants_) f.constants[i].value += dynamic;
    f.dynamic_shared = dynamic;
    f.local_bytes = aligned(f.local_bytes, 16);

    f.registers_bytes = registers_end_;
    f.file_bytes = registers_end_ + filled_end_;
    auto rebase = [&](std::uint32_t& row) {
      if (row != Operand::none && (row & filled_row) != 0) row = (row & ~filled_row) + registers_end_;
    };
    for (Instruction& in : f.code) {
      for (std::size_t i = 0; i < in.count; ++i) rebase(const_cast<Operand&>(in.operands[i]).row);
    }
    for (auto& constant : f.constants) rebase(constant.row);
    for (auto& special : f.specials) rebase(special.row);
  }

  struct Actual {
    std::size_t call;
    std::string name;
    std::vector<Local> arguments, results;
  };

  using Decode = void (Decoder::*)(Mnemonic&, Instruction&);
  static constexpr std::pair<std::string_view, Decode> table_[] = {
      {"mov", &Decoder::move},
      {"ld", &Decoder::load},
      {"ldu", &Decoder::load},
      {"st", &Decoder::store},
      {"atom", &Decoder::atomic},
      {"red", &Decoder::atomic},
      {"cp", &Decoder::copy},
      {"mbarrier", &Decoder::memory_barrier},
      {"cvta", &Decoder::convert_address},
      {"isspacep", &Decoder::is_space},
      {"activemask", &Decoder::active_mask},
      {"bra", &Decoder::branch},
      {"brx", &Decoder::branch},
      {"ret", &Decoder::function_return},
      {"exit", &Decoder::leave},
      {"trap", &Decoder::trap},
      {"brkpt", &Decoder::trap},
      {"call", &Decoder::call},
      {"bar", &Decoder::barrier},
      {"barrier", &Decoder::barrier},
      {"shfl", &Decoder::shuffle},
      {"vote", &Decoder::vote},
      {"match", &Decoder::match},
      {"redux", &Decoder::reduce},
      {"elect", &Decoder::elect},
      {"membar", &Decoder::nothing},
      {"fence", &Decoder::nothing},
      {"nanosleep", &Decoder::nothing},
      {"prefetch", &Decoder::nothing},
      {"prefetchu", &Decoder::nothing},
      {"applypriority", &Decoder::nothing},
      {"discard", &Decoder::nothing},
      {"griddepcontrol", &Decoder::nothing},
  };

  const Module& module_;
  std::unique_ptr<Function> function_;
  std::optional<Lexer> lexer_;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string_view, std::uint32_t> labels_;
  std::unordered_map<std::string_view, std::vector<std::string_view>> tables_;
  std::vector<std::pair<std::size_t, std::string_view>> branches_;  // instruction, label
  std::vector<Operand> operands_;                                    // of the instruction being decoded
  std::map<std::string_view, std::uint64_t> module_shared_;
  bool is_kernel_ = true;
  std::string caller_;
  std::uint32_t return_row_ = 0;
  Line line_, inlined_at_;
  std::map<Line, Line> callers_of_lines_;

  std::map<std::string, Frame> frames_;
  std::map<std::string, std::set<std::string>> callers_;  // caller to callees
  std::vector<std::string> pending_;
  std::vector<Actual> actual_;

  std::uint32_t registers_end_ = 0, filled_end_ = 0, predicates_ = 0, predicate_chunk_ = 0;
  std::map<std::array<std::uint64_t, 3>, std::uint32_t> constants_;
  std::map<Special, std::uint32_t> specials_;
  std::map<int, std::uint32_t> scratch_;
  std::vector<std::size_t> dynamic_constants_;  // relative to dynamic shared memory
  std::optional<std::uint32_t> carry_;
  std::size_t dynamic_alignment_ = 1;
};

}  // namespace

std::unique_ptr<Function> decode(const Module& module, const std::string& kernel) {
  return Decoder(module, kernel).decode();
}

}  // namespace gatefold::cuda_emulator
