#include "cuda_emulator/report.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <utility>

namespace gatefold::cuda_emulator {

std::vector<std::string>& races() {
  static std::vector<std::string> list;
  return list;
}

void race(std::string message) { races().push_back(std::move(message)); }

std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;  // the demangler would take the function `f` for the type float
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? text.get() : name;
}

std::string hexadecimal(unsigned long long value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

}  // namespace gatefold::cuda_emulator
