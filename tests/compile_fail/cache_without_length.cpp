// expect: gatefold: a segment of `length` items takes cache\.of\(length\), not the KvCache itself: \{\.length = length, \.cache = cache\.of\(length\)\}; see docs/tutorials/own_program\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  KvCache<float, Cpu> cache(ctx, {.width = 2, .longest = 8});
#ifndef GATEFOLD_FAIL
  const Segment<float, Cpu> segment{.length = 4, .cache = cache.of(4)};
#else
  const Segment<float, Cpu> segment{.length = 4, .cache = cache};
#endif
  return static_cast<int>(segment.length);
}
