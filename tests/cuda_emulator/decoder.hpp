// Decodes the body of a kernel, and of the functions that it calls.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// The parts of a module that the reader keeps until a kernel is needed.
struct Module::Text {
  /// A kernel or function: the place of the token after `.entry` or `.func`, at which decoding begins.
  struct Place {
    std::size_t position = 0;
    std::uint32_t line = 0;
    bool kernel = false;
    bool defined = false;  // has a body
  };
  struct SharedVariable {
    std::size_t size = 0, alignment = 1;
    bool dynamic = false;  // extern, of unknown size
  };

  std::string ptx, target;  // target: sm_90a
  std::map<std::string, Place, std::less<>> places;
  std::map<std::string, SharedVariable, std::less<>> shared;
  std::map<std::string, std::unique_ptr<Function>, std::less<>> decoded;
  std::vector<std::unique_ptr<char[]>> memory;  // memory of variables
};

/// @throws Fault if the code contains an unknown construct
std::unique_ptr<Function> decode(const Module& module, const std::string& kernel);

/// A declaration such as `.align 4 .b8 name[16]`, without its space. Reading begins at the token after the space.
struct Declaration {
  std::string_view name;
  std::size_t alignment = 1, element = 1, count = 1;
  bool open = false;  // `name[]`
  std::size_t size() const { return element * count; }
};

class Lexer;
Declaration read_declaration(Lexer& lexer);

/// Returns `offset` rounded up to a multiple of `alignment`.
inline std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace gatefold::cuda_emulator
