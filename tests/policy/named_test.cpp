#include "gatefold/policy/named.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

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

TEST_CASE("a member is named whatever it is: template, overload set, type, data, inherited") {
  static_assert(named::validate<Template>() && named::infer<Overloaded>() && named::Saved<Type>() &&
                named::Carry<Type>());
  static_assert(named::evaluations<Data>() && named::picks_by_item<Data>());
  static_assert(named::validate<Derived>() && named::evaluations<Derived>());
  static_assert(!named::validate<Nameless>() && !named::Params<Type>() && !named::infer<Derived>());
  static_assert(!named::validate<int>() && !named::validate<void (*)()>());
}

TEST_CASE("for_each_hook tells the names a policy has, and no other") {
  CHECK(names<Nameless>().empty());
  CHECK(names<Derived>() == std::vector<std::string>{"validate", "evaluations", "picks_by_item"});
  CHECK(names<Type>() == std::vector<std::string>{"Saved", "Carry"});
}
