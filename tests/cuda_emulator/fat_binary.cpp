// The registration calls in nvcc's start-up code, and the fat binaries that they register.
#include "cuda_emulator/fat_binary.hpp"

#include <fatbinary_section.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/reader.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

// The layout of a fat binary: one header, then entries, each with a header and a payload.
struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t entries_bytes;
};
struct Entry {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t payload_bytes;
  std::uint32_t compressed_bytes, reserved;
  std::uint16_t minor, major;
  std::uint32_t compute_capability;
};
constexpr std::uint32_t magic = 0xBA55ED50;
constexpr std::uint16_t ptx_kind = 1;

template <class T>
T read_as(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// A fat binary of the program, and the modules read from it so far. Modules are read at their first use.
struct FatBinary {
  const char* data = nullptr;
  std::map<const char*, std::unique_ptr<Module>> modules = {};  // by the address of their text
};

struct Name {
  FatBinary* binary;
  std::string name;
};

struct Registry {
  std::vector<std::unique_ptr<FatBinary>> binaries;
  std::map<const void*, Name> kernel_names, variable_names;
  std::map<std::pair<const void*, const Module*>, Kernel> kernels;
};

// Never destroyed, because start-up code registers before main, and destructors after main may launch kernels.
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

// A module and the compute capability of its text.
struct Loaded {
  const Module* module = nullptr;
  int compute_capability = 0;
};

// Returns the module that the device runs, or no module if the program has none for this device.
Loaded load(FatBinary& binary) {
  const auto [text, compute_capability] = choose_ptx(binary.data, options().compute_capability);
  if (text.empty()) return {};
  auto& module = binary.modules[text.data()];
  if (!module) module = read(std::string(text.substr(0, text.find('\0'))));
  return {module.get(), compute_capability};
}

// Returns true if the text is only for one architecture, as sm_90a is.
bool is_for_one_architecture(std::string_view text) {
  constexpr std::string_view directive = ".target sm_";
  const std::size_t found = text.find(directive);
  if (found == std::string_view::npos) return false;
  const std::size_t end = text.find_first_not_of("0123456789", found + directive.size());
  return end != std::string_view::npos && text[end] == 'a';
}

}  // namespace

PtxText choose_ptx(const char* data, int compute_capability) {
  const auto header = read_as<Header>(data);
  if (header.magic != magic) {
    throw Fault("fat binary: expected the magic number " + hexadecimal(magic) + ", got " + hexadecimal(header.magic));
  }
  PtxText best;
  bool any = false;
  const char* const end = data + header.header_bytes + header.entries_bytes;
  for (const char* at = data + header.header_bytes; at < end;) {
    const auto entry = read_as<Entry>(at);
    const std::string_view payload(at + entry.header_bytes, entry.payload_bytes);
    at = payload.data() + payload.size();
    if (entry.kind != ptx_kind) continue;
    if (entry.compressed_bytes != 0) {
      throw Fault("fat binary: its PTX is compressed: compile with nvcc --no-compress");
    }
    any = true;
    const int needed = static_cast<int>(entry.compute_capability);
    const bool alone = is_for_one_architecture(payload);
    if (alone ? needed != compute_capability : needed > compute_capability) continue;
    if (needed > best.compute_capability || (alone && needed == best.compute_capability)) best = {payload, needed};
  }
  if (!any) throw Fault("fat binary: it holds no PTX: compile with nvcc -arch=compute_80 -code=compute_80");
  return best;
}

cudaError_t find_kernel(const void* host, Kernel*& kernel) {
  const auto name = registry().kernel_names.find(host);
  if (name == registry().kernel_names.end()) return cudaErrorInvalidDeviceFunction;
  const auto [module, compute_capability] = load(*name->second.binary);
  if (!module) return cudaErrorNoKernelImageForDevice;
  Kernel& found = registry().kernels[{host, module}];
  found.compute_capability = compute_capability;
  if (!found.function) found.function = module->find(name->second.name);
  if (!found.function) return cudaErrorInvalidDeviceFunction;
  kernel = &found;
  return cudaSuccess;
}

cudaError_t find_variable(const void* host, std::span<char>& memory) {
  const auto name = registry().variable_names.find(host);
  if (name == registry().variable_names.end()) return cudaErrorInvalidSymbol;
  const Module* module = load(*name->second.binary).module;
  if (!module) return cudaErrorNoKernelImageForDevice;
  const auto variable = module->variables.find(name->second.name);
  if (variable == module->variables.end()) return cudaErrorInvalidSymbol;
  memory = {reinterpret_cast<char*>(variable->second.address), variable->second.size};
  return cudaSuccess;
}

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  const auto* data = static_cast<const __fatBinC_Wrapper_t*>(wrapper)->data;
  auto& binaries = registry().binaries;
  binaries.push_back(std::make_unique<FatBinary>(FatBinary{reinterpret_cast<const char*>(data)}));
  return reinterpret_cast<void**>(binaries.back().get());
}

void __cudaRegisterFatBinaryEnd(void**) {}

// Does nothing, because static objects of the program may still launch kernels.
void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  registry().kernel_names[host] = {reinterpret_cast<FatBinary*>(binary), name};
}

void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, std::size_t, int, int) {
  registry().variable_names[host] = {reinterpret_cast<FatBinary*>(binary), name};
}

}  // extern "C"
