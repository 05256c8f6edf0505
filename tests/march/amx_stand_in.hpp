#pragma once

// Implements the instructions of Intel's matrix unit (AMX) in software, and the system call that permits them. The
// option -include reads this file first, so that it replaces the intrinsics, and code for the unit runs on a machine
// without it. Written from Intel's manual (Software Developer's Manual, volume 2). Throws an exception if the unit
// would fault.

// As in gatefold/backend/cpu/instruction_set.hpp.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace amx_stand_in {

/// The state of the process: whether the unit is permitted, and how often each operation was called.
struct Process {
  std::atomic<bool> permitted{false};
  std::atomic<long> asked{0}, configured{0}, released{0}, multiplied{0}, multiplied_bytes{0};

  ~Process() {
    std::printf("AMX in software: %ld tdpbf16ps, %ld tdpbssd\n", multiplied.load(), multiplied_bytes.load());
  }
};
inline Process process;

inline void expect(bool ok, const char* instruction, const char* what) {
  if (!ok) throw std::logic_error(std::string("AMX: ") + instruction + ": " + what);
}

/// The state of a thread: empty before ldtilecfg and after tilerelease.
class Unit {
 public:
  static constexpr int tiles = 8, most_rows = 16, most_bytes = 64;

  ~Unit() {
    if (palette_ == 0) return;
    std::fputs("AMX: a thread ends with tiles set up\n", stderr);
    std::abort();
  }

  void load_configuration(const void* memory) {
    permitted("ldtilecfg");
    std::uint8_t c[64];
    std::memcpy(c, memory, sizeof c);
    if (palette_ != 0) ++process.released;
    palette_ = 0;
    if (c[0] == 0) return;  // as tilerelease
    expect(c[0] == 1, "ldtilecfg", "palette");
    for (int i = 1; i < 16; ++i) expect(c[i] == 0, "ldtilecfg", "first row, and bytes that are reserved");
    for (int t = 0; t < 16; ++t) {
      std::uint16_t bytes;
      std::memcpy(&bytes, c + 16 + 2 * t, sizeof bytes);
      const int rows = c[48 + t];
      expect(t < tiles || (bytes == 0 && rows == 0), "ldtilecfg", "a tile that is not there");
      expect(bytes <= most_bytes && rows <= most_rows, "ldtilecfg", "a tile that is too large");
      expect((bytes == 0) == (rows == 0), "ldtilecfg", "a tile of rows without columns, or the other way round");
      if (t < tiles) shape_[t] = {rows, bytes};
    }
    std::memset(data_, 0, sizeof data_);
    palette_ = c[0];
    ++process.configured;
  }
  void store_configuration(void* memory) const {
    permitted("sttilecfg");
    std::uint8_t c[64] = {static_cast<std::uint8_t>(palette_)};
    for (int t = 0; palette_ != 0 && t < tiles; ++t) {
      const auto bytes = static_cast<std::uint16_t>(shape_[t].bytes);
      std::memcpy(c + 16 + 2 * t, &bytes, sizeof bytes);
      c[48 + t] = static_cast<std::uint8_t>(shape_[t].rows);
    }
    std::memcpy(memory, c, sizeof c);
  }
  void release() {
    permitted("tilerelease");
    if (palette_ != 0) ++process.released;
    palette_ = 0;
  }
  void zero(int t) {
    usable(t, "tilezero");
    std::memset(data_[t], 0, sizeof data_[t]);
  }
  void load(int t, const void* base, std::int64_t stride) {
    usable(t, "tileloadd");
    std::memset(data_[t], 0, sizeof data_[t]);
    for (int row = 0; row < shape_[t].rows; ++row)
      std::memcpy(data_[t][row], static_cast<const char*>(base) + row * stride, size_of(t));
  }
  void store(int t, void* base, std::int64_t stride) {
    usable(t, "tilestored");
    for (int row = 0; row < shape_[t].rows; ++row)
      std::memcpy(static_cast<char*>(base) + row * stride, data_[t][row], size_of(t));
  }
  void multiply_bfloat16(int c, int a, int b) {
    fit("tdpbf16ps", c, a, b);
    ++process.multiplied;
    // Subnormal inputs and results are 0. Rounds to nearest, ties to even.
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8040);
    multiply(c, a, b);
    _mm_setcsr(before);
  }
  void multiply_bytes(int c, int a, int b) {
    fit("tdpbssd", c, a, b);
    ++process.multiplied_bytes;
    for (int m = 0; m < shape_[a].rows; ++m)
      for (int n = 0; n < shape_[b].bytes / 4; ++n) {
        std::int32_t sum;
        std::memcpy(&sum, data_[c][m] + 4 * n, sizeof sum);
        for (int k = 0; k < shape_[a].bytes; ++k)
          sum += static_cast<std::int8_t>(data_[a][m][k]) * static_cast<std::int8_t>(data_[b][k / 4][4 * n + k % 4]);
        std::memcpy(data_[c][m] + 4 * n, &sum, sizeof sum);
      }
  }

 private:
  struct Shape {
    int rows, bytes;
  };
  std::size_t size_of(int t) const { return static_cast<std::size_t>(shape_[t].bytes); }
  static void permitted(const char* instruction) { expect(process.permitted, instruction, "not permitted"); }
  void usable(int t, const char* instruction) const {
    permitted(instruction);
    expect(palette_ == 1, instruction, "no configuration");
    expect(0 <= t && t < tiles && shape_[t].rows > 0, instruction, "a tile without a shape");
  }
  void fit(const char* instruction, int c, int a, int b) const {
    for (const int t : {c, a, b}) usable(t, instruction);
    expect(c != a && c != b && a != b, instruction, "a tile twice");
    expect(shape_[a].rows == shape_[c].rows, instruction, "rows of a, and of c");
    expect(shape_[b].bytes == shape_[c].bytes, instruction, "columns of b, and of c");
    expect(shape_[a].bytes / 4 == shape_[b].rows, instruction, "words of a row of a, and rows of b");
    for (const int t : {c, a, b}) expect(shape_[t].bytes % 4 == 0, instruction, "half a word");
  }
  // Not inline, so that the compiler moves no arithmetic across the writes of the control register. Each lane is a
  // column of c; lanes beyond the shape hold 0.
  [[gnu::noinline]] void multiply(int c, int a, int b) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    for (int m = 0; m < shape_[a].rows; ++m) {
      __m512 even = _mm512_setzero_ps(), odd = even;
      for (int k = 0; k < shape_[a].bytes / 4; ++k) {
        std::int32_t pair;
        std::memcpy(&pair, data_[a][m] + 4 * k, sizeof pair);
        const __m512i x = _mm512_set1_epi32(pair), y = _mm512_loadu_si512(data_[b][k]);
        even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                               _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
        odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, upper)),
                              _mm512_castsi512_ps(_mm512_and_si512(y, upper)), odd);
      }
      _mm512_storeu_ps(data_[c][m], _mm512_add_ps(_mm512_loadu_ps(data_[c][m]), _mm512_add_ps(even, odd)));
    }
  }

  int palette_ = 0;
  Shape shape_[tiles];
  std::uint8_t data_[tiles][most_rows][most_bytes];
};
inline thread_local Unit unit;

/// Implements arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). It is refused, as by a kernel, if
/// AMX_STAND_IN_REFUSES is set.
inline long request(long code, long feature) {
  ++process.asked;
  errno = code != 0x1023 ? EINVAL : EOPNOTSUPP;
  if (code != 0x1023 || feature != 18 || std::getenv("AMX_STAND_IN_REFUSES")) return -1;
  process.permitted = true;
  return 0;
}
/// Passes other calls to the kernel.
template <class... Arguments>
long system_call(long number, Arguments... arguments) {
  if constexpr ((... && std::is_same_v<Arguments, long>)&&sizeof...(Arguments) == 2)
    if (number == SYS_arch_prctl) return request(arguments...);
  return syscall(number, arguments...);
}

}  // namespace amx_stand_in

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(memory) amx_stand_in::unit.load_configuration(memory)
#define _tile_storeconfig(memory) amx_stand_in::unit.store_configuration(memory)
#define _tile_release() amx_stand_in::unit.release()
#define _tile_zero(t) amx_stand_in::unit.zero(t)
#define _tile_loadd(t, base, stride) amx_stand_in::unit.load(t, base, stride)
#define _tile_stream_loadd(t, base, stride) amx_stand_in::unit.load(t, base, stride)
#define _tile_stored(t, base, stride) amx_stand_in::unit.store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) amx_stand_in::unit.multiply_bfloat16(c, a, b)
#define _tile_dpbssd(c, a, b) amx_stand_in::unit.multiply_bytes(c, a, b)
#define syscall(...) amx_stand_in::system_call(__VA_ARGS__)
