// One program for several processors: runs the newest variant of variant.cpp that this processor supports, or the
// variant named on the command line. CMakeLists.txt compiles this file for the oldest processor. It includes no header
// of the library.
#include <cstdio>
#include <cstring>

double train_v2();
double train_v3();
double train_v4();

namespace {

struct Variant {
  const char* name;
  bool supported;
  double (*train)();
};

}  // namespace

int main(int argc, char** argv) {
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 =
      v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const Variant variants[] = {{"v4", v4, train_v4}, {"v3", v3, train_v3}, {"v2", v2, train_v2}};  // the best first

  const bool asked = argc == 3 && std::strcmp(argv[1], "--variant") == 0;
  if (argc > 1 && !asked) return std::fprintf(stderr, "usage: variants [--variant v2|v3|v4]\n"), 2;
  for (const Variant& v : variants) {
    if (asked ? std::strcmp(argv[2], v.name) != 0 : !v.supported) continue;
    if (!v.supported) return std::fprintf(stderr, "variants: this processor cannot run x86-64-%s\n", v.name), 2;
    std::printf("x86-64-%s: loss %.6f\n", v.name, v.train());
    return 0;
  }
  return asked ? std::fprintf(stderr, "variants: no variant %s, there are v2, v3 and v4\n", argv[2])
               : std::fprintf(stderr, "variants: this processor is older than x86-64-v2\n"),
         2;
}
