// For the tests of the emulator: runs a few lines of PTX.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/reader.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan32 = std::numeric_limits<float>::quiet_NaN();
inline constexpr double nan64 = std::numeric_limits<double>::quiet_NaN();

/// An array on the device.
template <class T>
struct DeviceArray {
  explicit DeviceArray(std::size_t n, T fill = {})
      : size(n), data(static_cast<T*>(Memory::device().allocate(n * sizeof(T)))) {
    for (std::size_t i = 0; i < n; ++i) data[i] = fill;
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    std::memcpy(data, values.data(), size * sizeof(T));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { Memory::device().release(data); }
  std::vector<T> values() const { return {data, data + size}; }
  T& operator[](std::size_t i) { return data[i]; }

  std::size_t size;
  T* data;
};

/// Returns a module with one kernel `k` that has two pointers and enough registers: %p (predicates), %h (16 bits), %r
/// (32), %d (64). %d0 and %d1 hold the pointers, %r0 the number of the thread, %d2 the first pointer plus 8 bytes per
/// thread.
inline std::string kernel_text(const std::string& body, const std::string& before = "") {
  return ".version 8.7\n.target sm_90a\n.address_size 64\n" + before +
         "\n.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)\n{\n"
         ".reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %d<40>;\n"
         "ld.param.u64 %d0, [k_param_0]; ld.param.u64 %d1, [k_param_1];\n"
         "mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 8; add.s64 %d2, %d2, %d0;\n" +
         body + "\nret;\n}\n";
}

struct Shape {
  Extent grid = {}, block = {};
  std::size_t shared_bytes = 0;
};

/// Runs the kernel `k` of a whole module.
inline void run_module(const std::string& text, const void* first, const void* second = nullptr, Shape shape = {}) {
  const auto module = read(text);
  Launch arguments{shape.grid, shape.block, shape.shared_bytes, std::vector<char>(16)};
  std::memcpy(arguments.parameters.data(), &first, 8);
  std::memcpy(arguments.parameters.data() + 8, &second, 8);
  launch(*module->find("k"), arguments);
}

/// Runs a body, given two pointers.
inline void run_body(const std::string& body, const void* first, const void* second = nullptr, Shape shape = {}) {
  run_module(kernel_text(body), first, second, shape);
}

/// Runs a body in which every thread computes a number of 64 bits in %d9. Returns the numbers of all threads.
inline std::vector<std::uint64_t> each_thread(const std::string& body, std::uint32_t threads = 32,
                                              std::size_t shared_bytes = 0) {
  DeviceArray<std::uint64_t> out(threads);
  run_body(body + "\nst.global.u64 [%d2], %d9;", out.data, nullptr, {{}, {threads}, shared_bytes});
  return out.values();
}

/// Returns the message of the Fault that run() throws, or "" if it throws none.
template <class F>
std::string fault_of(F run) {
  try {
    run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Runs one or more instructions with the operands %a, %b, %c ... of the types S, and returns their result %o of type
/// D. The registers %p0 ... %p3 and %t0 ... %t3 (32 bits) are free. A full warp and a warp with a single thread compute
/// the result; all threads must agree.
template <class D, class... S>
D evaluate(const std::string& instruction, S... operands) {
  auto declare = [](const std::string& name, std::size_t bytes) {
    return ".reg .b" + std::to_string(bytes <= 2 ? 16 : 8 * bytes) + " " + name + ";\n";
  };
  auto access = [](std::size_t bytes) { return ".b" + std::to_string(8 * bytes); };
  constexpr std::size_t count = sizeof...(S), threads = 33;
  std::vector<std::uint64_t> cells(count + 1);
  std::string body = "{\n.reg .pred %p<4>; .reg .b32 %t<4>;\n" + declare("%o", sizeof(D));
  std::size_t i = 0;
  [[maybe_unused]] auto pass = [&](auto operand) {
    std::memcpy(&cells[i], &operand, sizeof operand);
    const std::string name = std::string("%") + static_cast<char>('a' + i);
    body += declare(name, sizeof operand) + "ld.global" + access(sizeof operand) + " " + name + ", [%d1+" +
            std::to_string(8 * i) + "];\n";
    ++i;
  };
  (pass(operands), ...);
  body += instruction + "\nst.global" + access(sizeof(D)) + " [%d2], %o;\n}";
  const DeviceArray<std::uint64_t> in(cells);
  const DeviceArray<std::uint64_t> out(threads);
  run_body(body, out.data, in.data, {{}, {threads}});
  for (std::size_t t = 1; t < threads; ++t) {
    if (out.data[t] != out.data[0]) throw Fault("threads disagree about " + instruction);
  }
  D result;
  std::memcpy(&result, out.data, sizeof result);
  return result;
}

}  // namespace gatefold::cuda_emulator
