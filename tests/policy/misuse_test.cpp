#include "gatefold/policy/misuse.hpp"

#include <doctest/doctest.h>

#include <type_traits>

using namespace gatefold;

namespace {

struct Run {
  int step(int x, int target) const { return x + target; }
  void step(detail_::policy::Misuse<"a step needs a target">) const;
};
template <class R, class... A>
concept Steps = requires(const R run, A... arguments) {
  run.step(arguments...);
};

struct Options {
  double rate = 1;
  [[no_unique_address]] detail_::policy::Misuse<"a momentum belongs elsewhere"> momentum{};
  [[no_unique_address]] detail_::policy::Misuse<"a decay belongs elsewhere"> decay{};
};
template <class O>
concept TakesMomentum = requires(O options) {
  O{.rate = 2, .momentum = 1};
};
template <class O>
concept TakesRate = requires(O options) {
  O{.rate = 2};
};

struct OptionsOfScores {
  Index experts = 0;
};
struct Counts {
  Index experts() const { return 3; }
};
struct CountsByScores {
  OptionsOfScores scores{};
  [[no_unique_address]] detail_::policy::Misuse<"experts belong to the scores"> experts{};
};

}  // namespace

TEST_CASE("Misuse: concepts do not accept calls that Misuse catches") {
  CHECK(Steps<Run, int, int>);
  CHECK_FALSE(Steps<Run, int>);
  CHECK_FALSE(Steps<Run, Options>);
  CHECK_FALSE(Steps<Run>);
  CHECK(Run{}.step(2, 3) == 5);
}

TEST_CASE("Misuse: a member of options takes no value or memory") {
  CHECK(TakesRate<Options>);
  CHECK_FALSE(TakesMomentum<Options>);
  CHECK(sizeof(Options) == sizeof(double));
  CHECK(std::is_aggregate_v<Options>);
  CHECK(std::is_trivially_copyable_v<Options>);
  Options options{.rate = 2};
  const Options copied = options;
  options = Options{};
  CHECK(copied.rate == 2);
  CHECK(options.rate == 1);
  CHECK_FALSE(std::is_convertible_v<int, decltype(Options::momentum)>);
  CHECK_FALSE(std::is_constructible_v<decltype(Options::momentum), int, int>);
}

TEST_CASE("CountsExperts: accepts a function or the scores of a gate") {
  CHECK(detail_::policy::CountsExperts<Counts>);
  CHECK(detail_::policy::CountsExperts<CountsByScores>);
  CHECK_FALSE(detail_::policy::CountsExperts<OptionsOfScores>);
  CHECK_FALSE(detail_::policy::CountsExperts<Options>);
}

// compile_fail/wrong_number_of_arguments.cpp and compile_fail/init_without_backend.cpp test the compiler's messages.
namespace {

struct TakesTwo {
  int forward(int a, int b) const { return a + b; }
  GATEFOLD_WRONG_COUNT(forward, 2, 2, "gatefold: forward takes (a, b)");
};

template <class L, class... A>
concept Callable = requires(const L layer, A... a) {
  layer.forward(a...);
};

}  // namespace

TEST_CASE("GATEFOLD_WRONG_COUNT: correct calls work; concepts reject wrong counts") {
  CHECK(TakesTwo{}.forward(1, 2) == 3);
  CHECK(Callable<TakesTwo, int, int>);
  CHECK_FALSE(Callable<TakesTwo, int>);
  CHECK_FALSE(Callable<TakesTwo, int, int, int>);
}
