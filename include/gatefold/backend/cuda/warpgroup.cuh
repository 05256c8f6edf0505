#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/device_code.cuh"

/// Functions for the instructions of Hopper's asynchronous products and copies (PTX ISA: mbarrier,
/// cp.async.bulk.tensor, wgmma.mma_async), in code compiled for sm_90a. In other code these functions are empty and
/// never called.
namespace gatefold::detail_::device {

/// An mbarrier, a barrier in shared memory that counts arrivals of threads and of copied bytes. It is identified by its
/// address.
struct Barrier {
  std::uint32_t address;

  /// Initialises the barrier for phases of `arrivals` arrivals. One thread calls it, before any other thread uses the
  /// barrier.
  __device__ void init(int arrivals) const {
#if GATEFOLD_SM_90A
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
#endif
  }
  __device__ void arrive() const {
#if GATEFOLD_SM_90A
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
#endif
  }
  /// Arrives at the barrier. The current phase is then complete only after asynchronous copies have written `bytes`
  /// bytes.
  __device__ void arrive_and_expect(int bytes) const {
#if GATEFOLD_SM_90A
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
#endif
  }
  /// Waits until the phase with the given parity is complete. This is the current phase of the barrier or the phase
  /// before it. Even phases have parity 0, odd phases have parity 1.
  __device__ void wait(int parity) const {
#if GATEFOLD_SM_90A
    std::uint32_t over = 0;
    while (!over)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(over)
                   : "r"(address), "r"(parity)
                   : "memory");
#endif
  }
};
/// Makes the initialised barriers visible to asynchronous copies and other threads. Call it after the last
/// Barrier::init.
__device__ inline void fence_barrier_init() {
#if GATEFOLD_SM_90A
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// Starts to copy a box, a part of a matrix in global memory, to shared memory. (column, row, matrix) is its position
/// in the tensor map. The copied bytes count for the barrier `full`.
__device__ inline void copy_box(std::uint32_t to, const void* map, int column, int row, int matrix, Barrier full) {
#if GATEFOLD_SM_90A
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(full.address)
      : "memory");
#endif
}

/// Makes this thread's writes to shared memory visible to the wgmma products that start later.
__device__ inline void fence_before_products() {
#if GATEFOLD_SM_90A
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Sets the number of registers of every thread of the warpgroup to `Count` from here on.
/// @tparam More  whether the number becomes larger
template <int Count, bool More>
__device__ void set_registers() {
#if GATEFOLD_SM_90A
  if constexpr (More) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
  }
#endif
}

/// Returns the descriptor by which wgmma products read a matrix in shared memory. The matrix has the 128-byte swizzle.
/// Each group of eight rows begins 1024 bytes after the previous group.
/// @param block_bytes  if neighbouring lines are contiguous (along_lines), the distance in bytes from one block of 64
///                     lines to the next
__device__ inline std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t block_bytes) {
  return std::uint64_t(((address & 0x3ffff) >> 4) | (block_bytes >> 4 << 16)) |
         (std::uint64_t((1u << 30) | (1024 >> 4)) << 32);
}

/// Orders earlier writes of registers before the wgmma products that follow. It is required if other instructions have
/// written the products' sums or factors in registers.
__device__ inline void begin_products() {
#if GATEFOLD_SM_90A
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Combines the wgmma products that were started since the last commit into one group, for wait_products.
__device__ inline void commit_products() {
#if GATEFOLD_SM_90A
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until all groups of wgmma products are complete, except for the last `Pending` groups.
template <int Pending>
__device__ void wait_products() {
#if GATEFOLD_SM_90A
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}

/// Waits until all wgmma products are complete. The products write the registers of the sums asynchronously, and the
/// compiler cannot detect this. The empty assembly prevents the compiler from moving reads of the sums before the wait.
__device__ inline void wait_for_sums(float (&sum)[128]) {
  wait_products<0>();
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

/// Starts a wgmma product of two bfloat16 matrices in shared memory, a of 64 × 16 and b of 16 × 256 values: sum = a b,
/// or sum += a b if `add` is true. The four warps of a warpgroup call it together. For i and k in {0, 1}, a lane has in
/// sum[4 j + 2 i + k] the sum in row 16 warp + lane / 4 + 8 i and column 8 j + 2 (lane % 4) + k.
/// @tparam AAlongLines, BAlongLines  true if neighbouring lines of a or b are contiguous, instead of the values of a
///         line
template <bool AAlongLines, bool BAlongLines>
__device__ void add_product(float (&sum)[128], std::uint64_t a, std::uint64_t b, bool add) {
#if GATEFOLD_SM_90A
  // clang-format off
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, p, 1, 1, %131, %132;\n}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
        "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
        "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
        "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
        "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
        "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
        "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
        "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
        "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63]), "+f"(sum[64]), "+f"(sum[65]),
        "+f"(sum[66]), "+f"(sum[67]), "+f"(sum[68]), "+f"(sum[69]), "+f"(sum[70]), "+f"(sum[71]),
        "+f"(sum[72]), "+f"(sum[73]), "+f"(sum[74]), "+f"(sum[75]), "+f"(sum[76]), "+f"(sum[77]),
        "+f"(sum[78]), "+f"(sum[79]), "+f"(sum[80]), "+f"(sum[81]), "+f"(sum[82]), "+f"(sum[83]),
        "+f"(sum[84]), "+f"(sum[85]), "+f"(sum[86]), "+f"(sum[87]), "+f"(sum[88]), "+f"(sum[89]),
        "+f"(sum[90]), "+f"(sum[91]), "+f"(sum[92]), "+f"(sum[93]), "+f"(sum[94]), "+f"(sum[95]),
        "+f"(sum[96]), "+f"(sum[97]), "+f"(sum[98]), "+f"(sum[99]), "+f"(sum[100]), "+f"(sum[101]),
        "+f"(sum[102]), "+f"(sum[103]), "+f"(sum[104]), "+f"(sum[105]), "+f"(sum[106]), "+f"(sum[107]),
        "+f"(sum[108]), "+f"(sum[109]), "+f"(sum[110]), "+f"(sum[111]), "+f"(sum[112]), "+f"(sum[113]),
        "+f"(sum[114]), "+f"(sum[115]), "+f"(sum[116]), "+f"(sum[117]), "+f"(sum[118]), "+f"(sum[119]),
        "+f"(sum[120]), "+f"(sum[121]), "+f"(sum[122]), "+f"(sum[123]), "+f"(sum[124]), "+f"(sum[125]),
        "+f"(sum[126]), "+f"(sum[127])
      : "l"(a), "l"(b), "r"(int(add)), "n"(int(AAlongLines)), "n"(int(BAlongLines)));
  // clang-format on
#endif
}

}  // namespace gatefold::detail_::device
