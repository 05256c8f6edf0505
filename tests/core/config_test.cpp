#include "gatefold/core/config.hpp"

#include <doctest/doctest.h>

#include <string_view>
#include <type_traits>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#endif

namespace {

GATEFOLD_HD constexpr int twice(int v) { return 2 * v; }

template <class T>
constexpr bool is_small() {
  GATEFOLD_EXPECT((sizeof(T) <= 8), "small types only")
  GATEFOLD_EXPECT((sizeof(T) >= 1), "no empty types")
  return true;
}

template <class T>
struct Small {
  GATEFOLD_REQUIRE(sizeof(T) <= 8, "small types only");
  T value;
};

template <gatefold::detail_::Sentence says>
constexpr std::string_view said() {
  return says.text;
}

GATEFOLD_DECLARE((class T, class U = int), First, Second);
GATEFOLD_FUNCTORS((class T, class U = int), Sum, Product);
GATEFOLD_FUNCTORS((class T), Negated);

struct UsesFunctors {
  template <class T>
  T negated_sum(T a, T b) const {
    return functor::Negated<T>{}(functor::Sum<T>{}(a, b));
  }
};

namespace functor {

template <class T, class U>
struct Sum {
  T operator()(T a, U b) const { return a + b; }
};
template <class T>
struct Negated {
  T operator()(T v) const { return -v; }
};

}  // namespace functor

}  // namespace

TEST_CASE("GATEFOLD_FUNCTORS: a type uses functors that are defined later") {
  CHECK(UsesFunctors{}.negated_sum(2, 3) == -5);
  static_assert(std::is_same_v<functor::Product<long>, functor::Product<long, int>>);
}

TEST_CASE("GATEFOLD_DECLARE: declares templates with default arguments") {
  static_assert(std::is_same_v<First<long>, First<long, int>> && !std::is_same_v<First<long>, Second<long>>);
}

TEST_CASE("GATEFOLD_HD: functions run on the host") {
  static_assert(twice(2) == 4);
  CHECK(twice(-3) == -6);
}

TEST_CASE("GATEFOLD_EXPECT: accepts types that meet every requirement") {
  static_assert(is_small<int>());
  CHECK(is_small<double>());
}

TEST_CASE("GATEFOLD_REQUIRE: accepts types in a class and a function") {
  GATEFOLD_REQUIRE((sizeof(Small<int>) == sizeof(int)), "nothing besides");
  CHECK(Small<int>{3}.value == 3);
  CHECK(Small<double>{2.5}.value == 2.5);
}

TEST_CASE("Sentence: a string can be a template argument") {
  static_assert(said<"two words">() == "two words");
  CHECK(said<"">().empty());
}

TEST_CASE("GATEFOLD_ASSERT: evaluates its condition unless NDEBUG is defined") {
  [[maybe_unused]] int evaluated = 0;
  GATEFOLD_ASSERT(++evaluated, "counts");
#ifdef NDEBUG
  CHECK(evaluated == 0);
#else
  CHECK(evaluated == 1);
#endif
}

#if defined(__unix__) && !defined(NDEBUG)
TEST_CASE("GATEFOLD_ASSERT: aborts if its condition fails") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);
    GATEFOLD_ASSERT(twice(1) == 3, "two is not three");
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}
#endif
