#include "cuda_emulator/reader.hpp"

#include <algorithm>
#include <cstring>

#include "cuda_emulator/decoder.hpp"
#include "cuda_emulator/lexer.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/mnemonic.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {

Module::Module() : text(std::make_unique<Text>()) {}

Module::~Module() {
  for (const auto& [name, variable] : variables)
    Memory::device().remove_global(reinterpret_cast<void*>(variable.address));
}

std::vector<std::string> Module::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : text->places) {
    if (place.kernel && place.defined) names.push_back(name);
  }
  return names;
}

const Function* Module::find(const std::string& kernel) const {
  const auto place = text->places.find(kernel);
  if (place == text->places.end() || !place->second.kernel || !place->second.defined) return nullptr;
  std::unique_ptr<Function>& function = text->decoded[kernel];
  if (!function) function = decode(*this, kernel);
  return function.get();
}

Declaration read_declaration(Lexer& lexer) {
  Declaration declaration;
  while (lexer.token().starts_with('.')) {
    if (lexer.accept(".align")) {
      declaration.alignment = lexer.number();
    } else if (lexer.accept(".attribute")) {
      while (!lexer.accept(")")) lexer.take();
    } else if (lexer.accept(".ptr")) {
      // `.param .u64 .ptr .global .align 8 name` promises something about the pointer, but does not change the
      // variable.
      for (const auto* space : {".global", ".shared", ".const", ".local"}) lexer.accept(space);
      if (lexer.accept(".align")) lexer.number();
    } else if (const auto type = type_named(lexer.token().substr(1))) {
      declaration.element = std::max<std::size_t>(type->bits / 8, 1);
      lexer.take();
    } else {
      lexer.fail("a type");
    }
  }
  declaration.name = lexer.take();
  while (lexer.accept("[")) {
    if (lexer.is("]")) {
      declaration.open = true;
      declaration.count = 0;
    } else {
      declaration.count *= lexer.number();
    }
    lexer.expect("]");
  }
  declaration.alignment = std::max(declaration.alignment, declaration.element);
  return declaration;
}

namespace {

class Reader {
 public:
  explicit Reader(Module& module) : module_(module), text_(*module.text), lexer_(text_.ptx, 0, 1) {}

  void read() {
    while (!lexer_.at_end()) {
      bool external = false;
      while (lexer_.is(".visible") || lexer_.is(".weak") || lexer_.is(".extern") || lexer_.is(".common")) {
        external = external || lexer_.is(".extern");
        lexer_.take();
      }
      if (lexer_.accept(".version") || lexer_.accept(".address_size")) {
        lexer_.take();
      } else if (lexer_.accept(".target")) {
        text_.target = lexer_.take();
        while (lexer_.accept(",")) lexer_.take();
      } else if (lexer_.accept(".file")) {
        file();
      } else if (lexer_.accept(".section")) {
        lexer_.take();
        lexer_.skip_braces();
      } else if (lexer_.accept(".global") || lexer_.accept(".const")) {
        variable(external);
      } else if (lexer_.accept(".shared")) {
        shared(external);
      } else if (lexer_.is(".entry") || lexer_.is(".func")) {
        function();
      } else if (!lexer_.accept(";")) {
        lexer_.fail("a directive that the emulator knows");
      }
    }
  }

 private:
  void file() {
    const auto number = static_cast<std::uint32_t>(lexer_.number());
    std::string_view name = lexer_.take();
    name = name.substr(1, name.size() - 2);
    module_.files[number] = std::string(name.substr(name.rfind('/') + 1));
    while (lexer_.accept(",")) lexer_.number();  // time and size
  }

  void shared(bool external) {
    const Declaration declaration = read_declaration(lexer_);
    text_.shared[std::string(declaration.name)] = {declaration.size(), declaration.alignment,
                                                   external && declaration.open};
    lexer_.expect(";");
  }

  void variable(bool external) {
    const Declaration declaration = read_declaration(lexer_);
    if (external) lexer_.fail("a definition of '" + std::string(declaration.name) + "', which is only declared");
    const std::size_t bytes = std::max<std::size_t>(declaration.size(), 1);
    constexpr std::size_t alignment = 256;
    text_.memory.push_back(std::make_unique<char[]>(bytes + alignment));
    const auto storage = reinterpret_cast<std::uintptr_t>(text_.memory.back().get());
    const std::uintptr_t address = aligned(storage, alignment);
    module_.variables[std::string(declaration.name)] = {address, declaration.size()};
    Memory::device().add_global(reinterpret_cast<void*>(address), bytes);
    if (lexer_.accept("=")) {
      std::size_t offset = 0;
      initialise(declaration, address, offset);
    }
    lexer_.expect(";");
  }

  /// Reads a value, or a list of values in braces, which may be nested.
  void initialise(const Declaration& declaration, std::uintptr_t address, std::size_t& offset) {
    if (lexer_.accept("{")) {
      while (!lexer_.accept("}")) {
        initialise(declaration, address, offset);
        lexer_.accept(",");
      }
      return;
    }
    if (offset + declaration.element > declaration.size()) lexer_.fail("the end of the initialiser");
    const std::uint64_t value = initial_value();
    std::memcpy(reinterpret_cast<char*>(address) + offset, &value, declaration.element);
    offset += declaration.element;
  }

  /// Reads a number, or `generic(name) + 8`.
  std::uint64_t initial_value() {
    if (lexer_.is_number() || lexer_.is("-")) return lexer_.number();
    const bool generic = lexer_.accept("generic");
    if (generic) lexer_.expect("(");
    const auto found = module_.variables.find(std::string(lexer_.token()));
    if (found == module_.variables.end()) lexer_.fail("a number or the name of a variable");
    lexer_.take();
    if (generic) lexer_.expect(")");
    return found->second.address + (lexer_.is("+") || lexer_.is("-") ? lexer_.number() : 0);
  }

  /// Stores the place of a kernel or function. It is decoded when it is needed.
  void function() {
    Module::Text::Place place;
    place.kernel = lexer_.take() == ".entry";
    place.line = lexer_.line();
    place.position = lexer_.end() - lexer_.token().size();
    if (lexer_.is("(")) skip_parentheses();
    const std::string name(lexer_.take());
    if (lexer_.is("(")) skip_parentheses();
    while (!lexer_.is("{") && !lexer_.is(";")) {
      if (lexer_.at_end()) lexer_.fail("a body");
      lexer_.take();
    }
    place.defined = lexer_.is("{");
    if (place.defined) {
      lexer_.skip_braces();
    } else {
      lexer_.take();
    }
    Module::Text::Place& known = text_.places[name];
    if (!known.defined) known = place;
  }

  void skip_parentheses() {
    while (!lexer_.accept(")")) {
      if (lexer_.at_end()) lexer_.fail("')'");
      lexer_.take();
    }
  }

  Module& module_;
  Module::Text& text_;
  Lexer lexer_;
};

}  // namespace

std::unique_ptr<Module> read(std::string ptx) {
  auto module = std::make_unique<Module>();
  module->text->ptx = std::move(ptx);
  Reader(*module).read();
  return module;
}

}  // namespace gatefold::cuda_emulator
