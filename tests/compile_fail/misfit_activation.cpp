// expect: gatefold: scalar_only of an activation must be static constexpr bool; see docs/reference/optional_members\.md
// A flag with the right name that is not static constexpr.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd {
#ifdef GATEFOLD_FAIL
  bool scalar_only = true;
#else
  static constexpr bool scalar_only = true;
#endif
  template <class V>
  static V value(V v) {
    return v;
  }
  template <class V>
  static V slope(V) {
    return V(1);
  }
};

int main() { return is_scalar_only<Odd> ? 1 : 0; }
