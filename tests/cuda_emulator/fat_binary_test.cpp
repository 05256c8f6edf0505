#include "cuda_emulator/fat_binary.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fatbinary_section.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*);
void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, std::size_t, int, int);
}

namespace gatefold::cuda_emulator {
namespace {

constexpr int ptx_kind = 1, elf_kind = 2;

// A fat binary byte by byte, as nvcc 13.0 writes it.
struct Image {
  std::string bytes = std::string("\x50\xed\x55\xba\x01\x00\x10\x00", 8) + std::string(8, '\0');

  template <class T>
  void put(std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  Image& add(int kind, int compute_capability, std::string payload, std::uint32_t compressed = 0) {
    payload.resize((payload.size() + 8) / 8 * 8, '\0');
    const std::size_t at = bytes.size();
    bytes.resize(at + 64);
    put(at, static_cast<std::uint16_t>(kind));
    put(at + 2, std::uint16_t{0x101});
    put(at + 4, std::uint32_t{64});
    put(at + 8, std::uint64_t{payload.size()});
    put(at + 16, compressed);
    put(at + 28, static_cast<std::uint32_t>(compute_capability));
    bytes += payload;
    put(8, std::uint64_t{bytes.size() - 16});
    return *this;
  }
};

std::string text_for(const Image& image, int compute_capability) {
  const PtxText ptx = choose_ptx(image.bytes.data(), compute_capability);
  return std::string(ptx.text.substr(0, ptx.text.find('\0')));
}

TEST_CASE("choose_ptx: picks the newest usable PTX from unsorted entries") {
  const Image image = Image().add(elf_kind, 80, "machine code").add(ptx_kind, 90, "ninety").add(ptx_kind, 80, "eighty");
  CHECK(text_for(image, 80) == "eighty");
  CHECK(text_for(image, 89) == "eighty");
  CHECK(text_for(image, 90) == "ninety");
  CHECK(text_for(image, 120) == "ninety");
  CHECK(choose_ptx(image.bytes.data(), 90).compute_capability == 90);
  CHECK(choose_ptx(image.bytes.data(), 75).text.empty());
}

TEST_CASE("choose_ptx: picks architecture-specific PTX only on its architecture") {
  const std::string all = ".version 8.0\n.target sm_90\n", alone = ".version 8.0\n.target sm_90a\n";
  for (const bool first : {false, true}) {
    const Image image = Image()
                            .add(ptx_kind, 90, first ? alone : all)
                            .add(ptx_kind, 90, first ? all : alone)
                            .add(ptx_kind, 80, "eighty");
    CHECK(text_for(image, 90) == alone);
    CHECK(text_for(image, 100) == all);
    CHECK(text_for(image, 89) == "eighty");
  }
  CHECK(choose_ptx(Image().add(ptx_kind, 90, alone).bytes.data(), 120).text.empty());
}

TEST_CASE("choose_ptx: unreadable PTX faults with the reason") {
  Image wrong = Image().add(ptx_kind, 80, "text");
  wrong.put(0, std::uint32_t{0x12345678});
  CHECK_THROWS_WITH_AS(choose_ptx(wrong.bytes.data(), 80),
                       "fat binary: expected the magic number 0xba55ed50, got 0x12345678", Fault);
  const Image compressed = Image().add(ptx_kind, 80, "zzz", 3);
  CHECK_THROWS_WITH_AS(choose_ptx(compressed.bytes.data(), 80),
                       "fat binary: its PTX is compressed: compile with nvcc --no-compress", Fault);
  const Image machine_code = Image().add(elf_kind, 80, "machine code");
  CHECK_THROWS_WITH_AS(choose_ptx(machine_code.bytes.data(), 80),
                       "fat binary: it holds no PTX: compile with nvcc -arch=compute_80 -code=compute_80", Fault);
}

// Returns PTX for one compute capability: a kernel that stores its argument plus a constant of the module.
std::string store_ptx(int compute_capability, int constant) {
  return ".version 8.0\n.target sm_" + std::to_string(compute_capability) +
         "\n.address_size 64\n"
         ".visible .global .align 4 .u32 addend = " +
         std::to_string(constant) +
         ";\n"
         ".visible .entry store(.param .u64 to, .param .u32 value) {\n"
         "  .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
         "  ld.param.u64 %rd1, [to];\n"
         "  ld.param.u32 %r1, [value];\n"
         "  ld.global.u32 %r2, [addend];\n"
         "  add.s32 %r3, %r1, %r2;\n"
         "  cvta.to.global.u64 %rd2, %rd1;\n"
         "  st.global.u32 [%rd2], %r3;\n"
         "  ret;\n"
         "}\n";
}

TEST_CASE("registration: finds kernels by stub, variables by shadow") {
  static char stub, other, shadow;
  static const Image image = Image().add(ptx_kind, 80, store_ptx(80, 100)).add(ptx_kind, 90, store_ptx(90, 200));
  static __fatBinC_Wrapper_t wrapper = {FATBINC_MAGIC, FATBINC_VERSION,
                                        reinterpret_cast<const unsigned long long*>(image.bytes.data()), nullptr};
  void** const binary = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(binary, &stub, &stub, "store", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterFunction(binary, &other, &other, "missing", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterVar(binary, &shadow, &shadow, "addend", 0, 4, 0, 0);

  int* device = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&device), sizeof(int)) == cudaSuccess);
  int value = 23;
  void* arguments[] = {&device, &value};
  const auto stored = [&] {
    REQUIRE(cudaLaunchKernel(&stub, 1, 1, arguments, 0, nullptr) == cudaSuccess);
    int result = 0;
    REQUIRE(cudaMemcpy(&result, device, sizeof result, cudaMemcpyDeviceToHost) == cudaSuccess);
    return result;
  };
  CHECK(stored() == 123);

  const int seven = 7;
  REQUIRE(cudaMemcpyToSymbol(&shadow, &seven, sizeof seven, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(stored() == 30);
  int back = 0;
  REQUIRE(cudaMemcpyFromSymbol(&back, &shadow, sizeof back, 0, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(back == 7);
  std::size_t bytes = 0;
  REQUIRE(cudaGetSymbolSize(&bytes, &shadow) == cudaSuccess);
  CHECK(bytes == 4);
  CHECK(cudaMemcpyToSymbol(&shadow, &seven, sizeof seven, 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyToSymbol(&stub, &seven, sizeof seven, 0, cudaMemcpyHostToDevice) == cudaErrorInvalidSymbol);

  options().compute_capability = 90;
  CHECK(stored() == 223);
  options().compute_capability = 75;
  CHECK(cudaLaunchKernel(&stub, 1, 1, arguments, 0, nullptr) == cudaErrorNoKernelImageForDevice);
  options().compute_capability = 80;
  CHECK(cudaLaunchKernel(&other, 1, 1, arguments, 0, nullptr) == cudaErrorInvalidDeviceFunction);
  CHECK(cudaLaunchKernel(&shadow, 1, 1, arguments, 0, nullptr) == cudaErrorInvalidDeviceFunction);
  CHECK(cudaFree(device) == cudaSuccess);
}

TEST_CASE("kernel attributes: distinguish PTX target and device") {
  static char stub;
  static const Image image = Image().add(ptx_kind, 80, store_ptx(80, 1)).add(ptx_kind, 90, store_ptx(90, 2));
  static __fatBinC_Wrapper_t wrapper = {FATBINC_MAGIC, FATBINC_VERSION,
                                        reinterpret_cast<const unsigned long long*>(image.bytes.data()), nullptr};
  __cudaRegisterFunction(__cudaRegisterFatBinary(&wrapper), &stub, &stub, "store", -1, nullptr, nullptr, nullptr,
                         nullptr, nullptr);
  struct Versions {
    int device, ptx;
  };
  for (const Versions& versions : {Versions{80, 80}, {89, 80}, {90, 90}, {120, 90}}) {
    CAPTURE(versions.device);
    options().compute_capability = versions.device;
    cudaFuncAttributes attributes;
    REQUIRE(cudaFuncGetAttributes(&attributes, &stub) == cudaSuccess);
    CHECK(attributes.ptxVersion == versions.ptx);
    CHECK(attributes.binaryVersion == versions.device);
  }
  options().compute_capability = 80;
}

}  // namespace
}  // namespace gatefold::cuda_emulator
