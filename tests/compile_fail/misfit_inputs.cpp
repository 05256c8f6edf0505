// expect: gatefold: the library assigns to the member length of an Extra, so declare it as Index, not const; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: the library assigns to the member valid of an Extra, so declare it as View<const T, 1, B> with the T and B of the model, not const; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: the library assigns to the member memory of an Extra, so declare it as AttentionMemory<T, B> with the T and B of the model, not const; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: the library assigns to the member noise of an Extra, so declare it as Noise, not const; see docs/reference/inputs\.md#inputs-of-its-own
// expect: gatefold: the library assigns to the member relative of an Extra, so declare it as View<const T, 2, B> with the T and B of the model, not const; see docs/reference/inputs\.md#inputs-of-its-own
// Extra inputs with the names of inputs that the library fills, but of other types. The library would not fill these
// inputs. For example, a model of floats would ignore padding, because its `valid` has elements of double.
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
