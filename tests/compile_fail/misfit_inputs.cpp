// expect: gatefold: length of an Extra must be Index, with the element type and backend of the value that is assigned to it; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: valid of an Extra must be View<const T, 1, B>, with the element type and backend of the value that is assigned to it; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: memory of an Extra must be AttentionMemory<T, B>, with the element type and backend of the value that is assigned to it; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: noise of an Extra must be Noise, with the element type and backend of the value that is assigned to it; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: relative of an Extra must be View<const T, 2, B>, with the element type and backend of the value that is assigned to it; see docs/reference/inputs\.md#inputs-of-its-own
// Extra inputs that are named as those that the library fills, and are others: they would not be filled. Padding of
// floats would be left out by a model of doubles.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

template <class T, class B>
struct Given {
#ifdef GATEFOLD_FAIL
  const Index length = 0;
  View<const double, 1, B> valid{};
  Index memory = 0;
  View<const T, 1, B> relative{};
#else
  Index length = 0;
  View<const T, 1, B> valid{};
  AttentionMemory<T, B> memory{};
  View<const T, 2, B> relative{};
#endif
};
struct Noisy {
#ifdef GATEFOLD_FAIL
  double noise = 0;
#else
  Noise noise{};
#endif
};

int main() {
  at_layer(Noisy{}, 1);
  auto extra = extra_of<Given<float, Cpu>>(Segment<float, Cpu>{});
  detail_::lookup::set_relative(extra, View<const float, 2, Cpu>());
}
