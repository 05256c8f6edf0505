// Runs one layer on the CPU and on a CUDA device. Prints the largest relative difference of the results, and the times.
//
//   cuda_layer [items dim hidden experts]
//
// Exit code 0: the results agree within the accuracy of float; 1: they differ more; 2: wrong arguments, no device, or
// not enough memory.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "layer.hpp"

namespace {

/// Returns max |a − b| / max |a|, or infinity if a difference is NaN.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double(a[i]) - double(b[i]));
    if (std::isnan(d)) return INFINITY;
    apart = std::max(apart, d);
    largest = std::max(largest, std::abs(double(a[i])));
  }
  return apart / largest;
}

/// Parses a whole number of at most 2⁴⁰. Returns 0 for a larger number, and for any other text.
gatefold::Index count_in(const char* text) {
  gatefold::Index n = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, n);
  return error == std::errc() && stopped == end && n <= gatefold::Index(1) << 40 ? n : 0;
}

}  // namespace

int main(int argc, char** argv) {
  example::Size size{.items = 48, .dim = 16, .hidden = 32, .experts = 4};
  if (argc == 5) {
    size = {.items = count_in(argv[1]),
            .dim = count_in(argv[2]),
            .hidden = count_in(argv[3]),
            .experts = count_in(argv[4])};
  }
  if ((argc != 1 && argc != 5) || std::min({size.items, size.dim, size.hidden, size.experts - 1}) < 1) {
    std::fprintf(stderr, "usage: cuda_layer [items dim hidden experts], each at least 1, experts at least 2\n");
    return 2;
  }
  try {
    const example::Outcome cpu = example::run_on_cpu(size), cuda = example::run_on_cuda(size);
    const double apart = std::max(difference(cpu.y, cuda.y), difference(cpu.dx, cuda.dx));
    std::printf(
        "%lld items of %lld, %lld experts of %lld: CPU %.3f ms, CUDA %.3f ms, largest relative difference %.1e\n",
        static_cast<long long>(size.items), static_cast<long long>(size.dim), static_cast<long long>(size.experts),
        static_cast<long long>(size.hidden), cpu.milliseconds, cuda.milliseconds, apart);
    return apart < 1e-5 ? 0 : 1;
  } catch (const gatefold::Error& error) {
    std::fprintf(stderr, "cuda_layer: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "cuda_layer: sizes: there is not enough memory for these sizes\n");
    return 2;
  }
}
