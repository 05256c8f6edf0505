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
