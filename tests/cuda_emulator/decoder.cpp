#include "cuda_emulator/decoder.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "cuda_emulator/instruction_decoder.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

/// Decodes a kernel, statement by statement, and then the functions that it calls.
class Decoder : InstructionDecoder {
 public:
  Decoder(const Module& module, const std::string& kernel) : InstructionDecoder(module, kernel) { body(kernel); }

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
  void body(const std::string& name) {
    const auto place = module_.text->places.find(name)->second;
    is_kernel_ = place.kernel;
    caller_ = name;
    lexer_.emplace(std::string_view(module_.text->ptx), place.position, place.line);
    scopes_.assign(1, {});
    for (const auto& [shared, address] : module_shared_)
      scopes_.front().variables[shared] = {Space::shared, address, 0};
    labels_.assign(1, {});

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
        lexer_->take();  // the driver enforces .reqntid; .minnctapersm and others are for ptxas
      }
    }
    frame.entry = static_cast<std::uint32_t>(function_->code.size());
    lexer_->take();
    for (int depth = 1; depth > 0;) {
      if (lexer_->accept("{")) {
        ++depth;
        scopes_.emplace_back();
        labels_.push_back({{}, {}, branches_.size()});
      } else if (lexer_->accept("}")) {
        --depth;
        if (depth > 0) {
          scopes_.pop_back();
          close_labels();
        }
      } else {
        statement();
      }
    }
    Mnemonic end("ret");  // a kernel returns at its end
    Instruction in;
    function_return(end, in);
    emit(in, end.text);
    close_labels();
    if (!branches_.empty()) {
      throw Fault("PTX: no label '" + std::string(branches_.front().second) + "' in " + demangled(caller_));
    }
  }

  /// Decodes parameters. Parameters of the kernel are in the buffer of the launch; `frame` is then nullptr. Parameters
  /// of functions are in local memory.
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

  /// Decodes `.loc file line column`, which may be followed by `, function_name label + 8, inlined_at file line
  /// column`.
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
    // The place into which a function was inlined may itself be in an inlined function.
    inlined_at_ = caller;
    for (int depth = 0; depth < 64; ++depth) {
      const auto next = callers_of_lines_.find(inlined_at_);
      if (next == callers_of_lines_.end() || next->second.line == 0) break;
      inlined_at_ = next->second;
    }
  }

  Line read_line() {
    Line line;
    for (std::uint32_t* part : {&line.file, &line.line, &line.column})
      *part = static_cast<std::uint32_t>(lexer_->number());
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
      do labels_.back().tables[name].push_back(lexer_->take());
      while (lexer_->accept(","));
      lexer_->expect(";");
    } else if (lexer_->is(".calltargets") || lexer_->is(".callprototype")) {
      lexer_->skip_statement();  // the call that names it is refused later
    } else {
      labels_.back().positions[name] = static_cast<std::uint32_t>(function_->code.size());
    }
  }

  /// The labels of a scope, and the number of the first branch in it.
  struct Labels {
    std::unordered_map<std::string_view, std::uint32_t> positions = {};
    std::unordered_map<std::string_view, std::vector<std::string_view>> tables = {};
    std::size_t first_branch = 0;
  };

  /// Resolves the branches of the innermost scope whose targets are labels of this scope. The other branches are left
  /// to the enclosing scope.
  void close_labels() {
    const Labels own = std::move(labels_.back());
    labels_.pop_back();
    const auto begin = branches_.begin() + static_cast<std::ptrdiff_t>(own.first_branch);
    const auto end = std::remove_if(begin, branches_.end(), [&](const auto& branch) {
      Instruction& in = function_->code[branch.first];
      const auto table = own.tables.find(branch.second);
      std::vector<std::string_view> names(1, branch.second);
      if (in.op == Opcode::branch_indexed) names = table == own.tables.end() ? names : table->second;
      std::vector<std::uint32_t> targets;
      for (const std::string_view name : names) {
        const auto found = own.positions.find(name);
        if (found == own.positions.end()) return false;
        targets.push_back(found->second);
      }
      if (in.op == Opcode::branch) {
        in.target = targets.front();
      } else {
        in.target = static_cast<std::uint32_t>(function_->branch_tables.size());
        function_->branch_tables.push_back(std::move(targets));
      }
      return true;
    });
    branches_.erase(end, branches_.end());
    if (!labels_.empty()) labels_.back().tables.insert(own.tables.begin(), own.tables.end());
  }

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
    finish_rows();
  }

  std::vector<Labels> labels_;  // of the open scopes
  std::map<Line, Line> callers_of_lines_;
};

}  // namespace

std::unique_ptr<Function> decode(const Module& module, const std::string& kernel) {
  return Decoder(module, kernel).decode();
}

}  // namespace gatefold::cuda_emulator
