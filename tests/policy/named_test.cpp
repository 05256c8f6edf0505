#include "gatefold/policy/named.hpp"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

struct Nameless {
  double gamma = 1;
};
struct Template {
  template <class T, class B>
  void validate(const T&, B) const {}
};
struct Overloaded {
  void infer(int) const {}
  void infer(int, int) const {}
};
struct Type {
  template <class T, class B>
  using Saved = T;
  struct Carry {};
};
struct Data {
  int evaluations = 2;
  [[maybe_unused]] static constexpr bool picks_by_item = true;
};
struct Derived : Template, Data {};

template <class P>
std::vector<std::string> names() {
  std::vector<std::string> found;
  for_each_hook<P>([&](const char* name) { found.emplace_back(name); });
  return found;
}

}  // namespace

TEST_CASE("named: finds templates, overloads, types, data and inherited members") {
  static_assert(detail_::named::validate<Template>() && detail_::named::infer<Overloaded>() &&
                detail_::named::Saved<Type>() && detail_::named::Carry<Type>());
  static_assert(detail_::named::evaluations<Data>() && detail_::named::picks_by_item<Data>());
  static_assert(detail_::named::validate<Derived>() && detail_::named::evaluations<Derived>());
  static_assert(!detail_::named::validate<Nameless>() && !detail_::named::Params<Type>() &&
                !detail_::named::infer<Derived>());
  static_assert(!detail_::named::validate<int>() && !detail_::named::validate<void (*)()>());
}

TEST_CASE("for_each_hook: visits only the names a policy has") {
  CHECK(names<Nameless>().empty());
  CHECK(names<Derived>() == std::vector<std::string>{"validate", "evaluations", "picks_by_item"});
  CHECK(names<Type>() == std::vector<std::string>{"Saved", "Carry"});
}

namespace {

struct Plain {};
struct Full {
  template <class T, class B>
  struct Params {};
  template <class T, class B>
  using Items = View<const Index, 1, B>;
};

}  // namespace

TEST_CASE("nested types: missing ones are Nothing; items are rows") {
  CHECK(std::is_same_v<Params<Plain, float, Cpu>, Nothing<float, Cpu>>);
  CHECK(std::is_same_v<Carry<Plain, double, Cpu>, Nothing<double, Cpu>>);
  CHECK(std::is_same_v<Items<Plain, float, Cpu>, View<const float, 2, Cpu>>);
  CHECK(std::is_same_v<ItemsGrad<Plain, float, Cpu>, View<float, 2, Cpu>>);
}

TEST_CASE("nested types: the policy's types are used; ids lack adjoints") {
  CHECK(std::is_same_v<Params<Full, float, Cpu>, Full::Params<float, Cpu>>);
  CHECK(std::is_same_v<Items<Full, float, Cpu>, View<const Index, 1, Cpu>>);
  CHECK(std::is_same_v<ItemsGrad<Full, float, Cpu>, Nothing<float, Cpu>>);
}

namespace {

/// Returns whether a forward-declared type is defined by the library.
template <class V>
constexpr bool is_defined = requires {
  sizeof(V);
};

}  // namespace

TEST_CASE("forward declarations: have matching definitions") {
  CHECK(is_defined<Noise>);
  CHECK(is_defined<Candidates<float, Cpu>>);
  CHECK(is_defined<SparsePlan<float, Cpu>>);
  CHECK(is_defined<SlotWeights<float, Cpu>>);
  CHECK(is_defined<Groups<Cpu>>);
  CHECK(is_defined<detail_::backend::AnyFunctor>);
  CHECK(is_defined<functor::NoStep<float>>);
  CHECK(is_defined<detail_::policy::ProbeCall<float, Cpu>>);
}
