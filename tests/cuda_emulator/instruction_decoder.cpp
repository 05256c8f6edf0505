#include "cuda_emulator/instruction_decoder.hpp"

#include <algorithm>
#include <iterator>

namespace gatefold::cuda_emulator {

/// Returns the function that decodes an instruction other than arithmetic, by its root.
InstructionDecoder::Decode InstructionDecoder::decode_named(std::string_view root) {
  static constexpr std::pair<std::string_view, Decode> table[] = {
      {"mov", &InstructionDecoder::move},
      {"ld", &InstructionDecoder::load},
      {"ldu", &InstructionDecoder::load},
      {"st", &InstructionDecoder::store},
      {"atom", &InstructionDecoder::atomic},
      {"red", &InstructionDecoder::atomic},
      {"cp", &InstructionDecoder::copy},
      {"mbarrier", &InstructionDecoder::memory_barrier},
      {"cvta", &InstructionDecoder::convert_address},
      {"isspacep", &InstructionDecoder::is_space},
      {"activemask", &InstructionDecoder::active_mask},
      {"bra", &InstructionDecoder::branch},
      {"brx", &InstructionDecoder::branch},
      {"ret", &InstructionDecoder::function_return},
      {"exit", &InstructionDecoder::leave},
      {"trap", &InstructionDecoder::trap},
      {"brkpt", &InstructionDecoder::trap},
      {"call", &InstructionDecoder::call},
      {"bar", &InstructionDecoder::barrier},
      {"barrier", &InstructionDecoder::barrier},
      {"shfl", &InstructionDecoder::shuffle},
      {"vote", &InstructionDecoder::vote},
      {"match", &InstructionDecoder::match},
      {"redux", &InstructionDecoder::reduce},
      {"elect", &InstructionDecoder::elect},
      {"ldmatrix", &InstructionDecoder::load_matrix},
      {"mma", &InstructionDecoder::multiply_matrices},
      {"wgmma", &InstructionDecoder::warpgroup_product},
      {"setmaxnreg", &InstructionDecoder::set_registers},
      {"membar", &InstructionDecoder::fence},
      {"fence", &InstructionDecoder::fence},
      {"nanosleep", &InstructionDecoder::nothing},
      {"prefetch", &InstructionDecoder::nothing},
      {"prefetchu", &InstructionDecoder::nothing},
      {"applypriority", &InstructionDecoder::nothing},
      {"discard", &InstructionDecoder::nothing},
      {"griddepcontrol", &InstructionDecoder::nothing},
  };
  for (const auto& [name, decode] : table) {
    if (name == root) return decode;
  }
  return nullptr;
}

void InstructionDecoder::emit(Instruction in, std::string_view text, std::string_view reason) {
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

void InstructionDecoder::instruction() {
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

void InstructionDecoder::comma() {
  if (!lexer_->accept(",")) throw Refused{"fewer operands than the emulator expects"};
}

Operand InstructionDecoder::operand(int bits) {
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

std::uint8_t InstructionDecoder::add_vector(int bits) {
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

std::int64_t InstructionDecoder::add_address(Space& space) {
  lexer_->expect("[");
  if (const auto base = find_register(lexer_->token())) {
    lexer_->take();
    operands_.push_back(*base);
  } else if (lexer_->is_number()) {
    operands_.push_back(constant(lexer_->number(), 64));
  } else {
    const Local* local = find_variable(lexer_->token());
    // Parameters of functions and of calls are stored in local memory.
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

void InstructionDecoder::take_space(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Space> spaces[] = {
      {"global", Space::global},          {"shared", Space::shared},         {"shared::cta", Space::shared},
      {"shared::cluster", Space::shared}, {"local", Space::local},           {"param", Space::parameter},
      {"param::entry", Space::parameter}, {"param::func", Space::parameter}, {"const", Space::constant},
  };
  in.space = mnemonic.choose(spaces).value_or(Space::generic);
}

void InstructionDecoder::take_ordering(Mnemonic& mnemonic, Instruction& in) {
  const bool both = mnemonic.take("acq_rel"), block_alone = mnemonic.take("cta");
  in.acquire = (mnemonic.take("acquire") || both) && !block_alone;
  in.release = (mnemonic.take("release") || both) && !block_alone;
  in.strong = both || in.acquire || in.release || block_alone;
  for (const auto* semantics : {"relaxed", "volatile", "mmio", "sc"}) {
    if (mnemonic.take(semantics)) in.strong = true;
  }
  for (const auto* other : {"weak", "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}) {
    mnemonic.take(other);
  }
  mnemonic.drop("L1::");
  mnemonic.drop("L2::");
}

std::uint8_t InstructionDecoder::take_elements(Mnemonic& mnemonic) {
  return mnemonic.take("v2") ? 2 : mnemonic.take("v4") ? 4 : mnemonic.take("v8") ? 8 : 1;
}

void InstructionDecoder::operands_of(Mnemonic& mnemonic, Instruction& in) {
  const std::string_view root = mnemonic.root;
  if (const Decode decode = decode_named(root)) return (this->*decode)(mnemonic, in);
  if (const auto chosen = select_arithmetic(mnemonic, in)) return arithmetic(*chosen, in);
  static constexpr std::string_view tensor[] = {"wmma", "tcgen05", "stmatrix", "movmatrix"};
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

void InstructionDecoder::arithmetic(const Arithmetic& chosen, Instruction& in) {
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

void InstructionDecoder::move(Mnemonic&, Instruction& in) {
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

void InstructionDecoder::address_or_register(int bits) {
  if (!find_register(lexer_->token()) && address_of(lexer_->token(), bits)) {
    const std::string_view name = lexer_->take();
    const std::int64_t offset = lexer_->is("+") ? static_cast<std::int64_t>(lexer_->number()) : 0;
    operands_.push_back(moved(*address_of(name, bits), offset));
    return;
  }
  add(bits);
}

void InstructionDecoder::load(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::store(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::cache_hint() {
  if (lexer_->accept(",")) operand(64);
}

void InstructionDecoder::atomic(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Update> updates[] = {
      {"add", Update::add},       {"min", Update::minimum},     {"max", Update::maximum},    {"exch", Update::exchange},
      {"cas", Update::compare},   {"and", Update::conjunction}, {"or", Update::disjunction}, {"xor", Update::exclusive},
      {"inc", Update::increment}, {"dec", Update::decrement},
  };
  in.op = Opcode::atomic;
  take_space(mnemonic, in);
  take_ordering(mnemonic, in);
  mnemonic.take("noftz");
  in.strong = true;
  const auto update = mnemonic.choose(updates);
  if (!update || in.type.packed || in.type.bits > 64)
    throw Refused{"an atomic operation that the emulator does not know"};
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

void InstructionDecoder::convert_address(Mnemonic& mnemonic, Instruction& in) {
  in.op = Opcode::cvta;
  in.mode = mnemonic.take("to");
  take_space(mnemonic, in);
  if (in.type.bits != 64) throw Refused{"addresses of 32 bits are not modelled"};
  add(64);
  comma();
  address_or_register(64);
}

void InstructionDecoder::is_space(Mnemonic& mnemonic, Instruction& in) {
  in.op = Opcode::isspacep;
  take_space(mnemonic, in);
  add(1);
  comma();
  add(64);
}

void InstructionDecoder::active_mask(Mnemonic&, Instruction& in) {
  in.op = Opcode::activemask;
  add(32);
}

void InstructionDecoder::branch(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::function_return(Mnemonic& mnemonic, Instruction& in) {
  mnemonic.take("uni");
  in.op = is_kernel_ ? Opcode::exit : Opcode::function_return;
  if (!is_kernel_) operands_.push_back({return_row_, 32});
}

void InstructionDecoder::call(Mnemonic& mnemonic, Instruction& in) {
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

std::vector<Places::Local> InstructionDecoder::actual_parameters() {
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

void InstructionDecoder::barrier(Mnemonic& mnemonic, Instruction& in) {
  if (mnemonic.take("warp")) {
    mnemonic.take("sync");
    in.op = Opcode::warp_barrier;
    add(32);
    return;
  }
  if (mnemonic.take("cluster")) throw Refused{"clusters are not modelled"};
  mnemonic.take("cta");
  in.aligned = mnemonic.root == "bar" || mnemonic.take("aligned");  // aligned: all threads of a warp arrive together
  const bool only_arrives = mnemonic.take("arrive");
  if (!only_arrives && mnemonic.take("red")) {
    static constexpr std::pair<std::string_view, Vote> reductions[] = {
        {"and", Vote::all}, {"or", Vote::any}, {"popc", Vote::ballot}};
    in.op = Opcode::barrier_reduce;
    in.mode = static_cast<std::uint8_t>(mnemonic.choose(reductions).value_or(Vote::ballot));
    add(static_cast<Vote>(in.mode) == Vote::ballot ? 32 : 1);
    comma();
  } else {
    if (!only_arrives) mnemonic.take("sync");
    in.op = only_arrives ? Opcode::barrier_arrive : Opcode::barrier;
    operands_.push_back(scratch(32));
  }
  // The operands are [result, number, threads or none, predicate].
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
    if (only_arrives) comma();
    if (only_arrives || lexer_->accept(",")) threads = operand(32);
    operands_.push_back(threads);
  }
}

void InstructionDecoder::shuffle(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::vote(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::match(Mnemonic& mnemonic, Instruction& in) {
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

void InstructionDecoder::reduce(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Update> operations[] = {
      {"add", Update::add},         {"min", Update::minimum},    {"max", Update::maximum},
      {"and", Update::conjunction}, {"or", Update::disjunction}, {"xor", Update::exclusive}};
  in.op = Opcode::reduce;
  mnemonic.take("sync");
  const auto operation = mnemonic.choose(operations);
  if (!operation || in.type.bits != 32 || in.type.floating())
    throw Refused{"a reduction that the emulator does not know"};
  in.mode = static_cast<std::uint8_t>(*operation);
  for (int i = 0; i < 3; ++i) {
    if (i > 0) comma();
    add(32);
  }
}

void InstructionDecoder::elect(Mnemonic& mnemonic, Instruction& in) {
  in.op = Opcode::elect;
  mnemonic.take("sync");
  add(32);
  add_second_predicate();
  comma();
  add(32);
}

void InstructionDecoder::fence(Mnemonic& mnemonic, Instruction& in) {
  const bool between_blocks = mnemonic.take("gl") || mnemonic.take("gpu") || mnemonic.take("sys");
  const bool between_proxies = mnemonic.take("proxy") && mnemonic.take("async") && !mnemonic.take("global");
  nothing(mnemonic, in);
  if (between_blocks) in.op = Opcode::fence;
  if (between_proxies) in.op = Opcode::proxy_fence;
}

void InstructionDecoder::nothing(Mnemonic& mnemonic, Instruction& in) {
  in.op = Opcode::nothing;
  in.mode = mnemonic.root == "nanosleep";  // lets other warps and blocks run
  mnemonic.modifiers.clear();
  while (!lexer_->is(";")) {
    if (lexer_->at_end()) lexer_->fail("';'");
    lexer_->take();
  }
}

}  // namespace gatefold::cuda_emulator
