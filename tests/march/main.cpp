// Runs every linked part and prints the bits of its results, one line each. The lines must not depend on the other
// parts of the program and their order.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>

#include "part.hpp"

namespace {

int failures = 0;

void check(bool ok, const char* a, const char* b, const char* what) {
  if (ok) return;
  std::printf("FAILED: %s, %s: %s\n", a, b, what);
  ++failures;
}

void print(const char* part, const char* what, const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037u;
  for (const float v : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  std::printf("%s %s %016llx\n", part, what, static_cast<unsigned long long>(hash));
}

// Returns whether results of two instruction sets agree up to rounding.
bool near(const std::vector<float>& a, const std::vector<float>& b) {
  bool ok = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; ok && i < a.size(); ++i) ok = std::abs(a[i] - b[i]) <= 1e-4f;  // AdamW moves by 1e-3 a step
  return ok;
}

}  // namespace

int main() {
  std::vector<Part> parts;
  for (const auto part : {part_narrow, part_middle, part_native})
    if (part) parts.push_back(part());
  for (const Part& a : parts) {
    const auto y = a.infer(), frozen = a.infer_frozen(), trained = a.train();
    print(a.name, "infers", y);
    print(a.name, "infers frozen", frozen);
    print(a.name, "trains", trained);
    check(y == frozen, a.name, a.name, "frozen weights change a bit");
    void* const model = a.make_frozen();
    for (const Part& b : parts) {
      check(near(y, b.infer()), a.name, b.name, "different results");
      check(near(trained, b.train()), a.name, b.name, "different training");
      // Part b gets a model whose weights part a has packed. It must refuse the model unless b is a.
      try {
        const auto z = b.infer_with(model);
        check(&a == &b && z == y, a.name, b.name, "weights of another layout were read");
      } catch (const std::exception& error) {
        check(&a != &b && std::strstr(error.what(), "compile freeze and infer with the same -march"), a.name, b.name,
              error.what());
      }
    }
    a.destroy(model);
  }
  return failures > 0;
}
