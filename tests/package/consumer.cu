// A consumer of gatefold::cuda with NVIDIA's own runtime and cuBLAS. With a device it computes; without one it prints
// one clear error.
#include <cstdio>
#include <cstring>
#include <gatefold/gatefold.cuh>
#if __has_include(<nccl.h>)
#include <gatefold/distributed.hpp>
#include <gatefold/nccl.cuh>
static_assert(gatefold::dist::DeviceWorld<gatefold::dist::Nccl<gatefold::dist::Alone>>);
#endif

using namespace gatefold;

int main() {
  try {
    Cuda::Context ctx;
    Tensor<float, 1, Cuda> x(3);
    fill(ctx, x.view(), 2);
    float host[3];
    Cuda::to_host(ctx, x.size(), x.data(), host);
    return host[0] + host[1] + host[2] == 6 ? 0 : 1;
  } catch (const DeviceError& error) {
    std::printf("%s\n", error.what());
    return std::strncmp(error.what(), "Cuda::Context: no CUDA device: ", 31) == 0 ? 0 : 1;
  }
}
