#include "gatefold/metric/routing_table.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <vector>
#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "support/pass.hpp"
#include "support/plans.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("routing_table (1): counts picks by class and expert") {
  Cpu::Context ctx(2);
  const std::vector<Pick> picks{{3, 0}, {0, 2}, {0, 1}, {1, 2}, {2, -1}, {2, 2}, {4, 0}, {1, 1}};
  const auto plan = plan_of<float>(ctx, 5, 3, picks);
  const std::vector<Index> labels{1, 0, 1, 0, 77};  // the last item is padding
  const std::vector<float> valid{1, 1, 1, 1, 0};
  const auto table = metric::routing_table(ctx, plan, labels, 3, valid);
  for (Index c = 0; c < 3; ++c)
    for (Index e = 0; e < 3; ++e) {
      Index expected = 0;
      for (const Pick& p : picks)
        expected += p.item != 4 && p.expert == e && labels[static_cast<std::size_t>(p.item)] == c;
      CHECK(table(c, e) == expected);
    }
  CHECK(table.of_class(0) == 3);
  CHECK(table.of_expert(2) == 3);
  CHECK(table.share_of_class(0, 1) == rounded(1.0 / 3));
  CHECK(table.share_of_expert(1, 2) == rounded(2.0 / 3));
  CHECK(table.share_of_class(2, 0) == 0);  // a class without picks
}

TEST_CASE("routing_table: works without items; wrong arguments throw") {
  Cpu::Context ctx(1);
  const auto none = plan_of<double>(ctx, 0, 2, {});
  const std::vector<Index> labels{5};
  const auto table = metric::routing_table(ctx, none, {}, 2);
  CHECK(table.counts == std::vector<Index>(4, 0));
  CHECK(table.share_of_expert(0, 0) == 0);
  const auto plan = plan_of<double>(ctx, 1, 2, {{0, 1}});
  CHECK(message_of([&] { (void)metric::routing_table(ctx, plan, labels, 5); }) ==
        "routing_table: labels: expected labels from 0 to 4, got 5");
  CHECK(message_of([&] { (void)metric::routing_table(ctx, plan, {}, 5); }) ==
        "routing_table: labels: expected [1], got [0]");
  CHECK(message_of([&] { (void)metric::routing_table(ctx, plan, labels, 0); }) ==
        "routing_table: classes: expected at least 1, got 0");
}

#if defined(__unix__) && !defined(NDEBUG)
TEST_CASE("routing_table: debug builds check labels on the device") {
  const std::vector<Index> item{0}, expert{1}, labels{5};
  const functor::ClassAndExpert<double, Cpu> key{item, expert, labels, 5, 2, {}};
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);
    _exit(int(key(0)));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}
#endif
