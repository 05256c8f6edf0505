#include "gatefold/backend/one_thread.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"

using namespace gatefold;

namespace {

const std::string refused =
    "Context: thread: expected one at a time (use one context per thread), got a second thread while the first is "
    "inside a call";

/// Returns the message of what f() throws on another thread.
template <class F>
std::string elsewhere(const F& f) {
  return std::async(std::launch::async,
                    [&]() -> std::string {
                      try {
                        f();
                      } catch (const ArgumentError& error) {
                        return error.what();
                      }
                      return "";
                    })
      .get();
}

/// Lets another thread run while the first is in a loop over rows.
struct InRows {
  std::string* said;
  Cpu::Context* ctx;
  Index* sum;
  template <class Lanes>
  void operator()(const Lanes&, Index row) const {
    if (row == 0) *said = elsewhere([&] { Cpu::for_each(*ctx, 1, [](Index) {}); });
    sum[row] = row;
  }
};

}  // namespace

TEST_CASE("OneThread: scopes nest in one thread, a second thread throws") {
  OneThread object;
  {
    const OneThread::Scope one(object), two(object);
    { const OneThread::Scope three(object); }
    CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == refused);
    CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == refused);  // the first one stays
  }
  CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == "");
  const OneThread::Scope again(object);
}

TEST_CASE("OneThread: a scope ends with an exception") {
  OneThread object;
  const auto fail = [&] {
    const OneThread::Scope scope(object);
    throw 1;
  };
  CHECK_THROWS_AS(fail(), int);
  CHECK(elsewhere([&] { const OneThread::Scope scope(object); }) == "");
}

TEST_CASE("OneThread: using one context in two threads throws") {
  Cpu::Context ctx(2);
  {
    const auto mark = ctx.mark();
    CHECK(elsewhere([&] { const auto second = ctx.mark(); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_each(ctx, 100, [](Index) {}); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_rows(ctx, 100, [](const auto&, Index) {}); }) == refused);
    CHECK(elsewhere([&] { Cpu::for_tasks(ctx, 4, [](Cpu::Context&, Index, Index) {}); }) == refused);
    double sum = 0;
    CHECK(elsewhere([&] {
            Cpu::reduce<double>(
                ctx, 10, [](Index) { return 1.0; }, &sum);
          }) == refused);
    std::array<float, 4> four{1, 2, 3, 4}, product{};
    const View<const float, 2, Cpu> a(four.data(), 2, 2);
    const View<float, 2, Cpu> c(product.data(), 2, 2);
    CHECK(elsewhere([&] { Cpu::gemm(ctx, a, false, a, false, false, c, functor::Store{}); }) == refused);
    Cpu::gemm(ctx, a, false, a, false, false, c, functor::Store{});  // the thread that holds the mark continues
    CHECK(product == std::array<float, 4>{7, 10, 15, 22});
    Cpu::Context other(2);
    CHECK(elsewhere([&] { Cpu::for_each(other, 100, [](Index) {}); }) == "");  // the other thread has its own context
  }
  CHECK(elsewhere([&] { Cpu::for_each(ctx, 100, [](Index) {}); }) == "");

  std::string said;
  Index sum[8];
  Cpu::for_rows(ctx, 8, InRows{&said, &ctx, sum});
  CHECK(said == refused);
}

TEST_CASE("for_tasks: only the calling thread may use the outer context") {
  Cpu::Context ctx(3, true);
  std::atomic<int> done = 0;
  Cpu::for_tasks(ctx, 12, [&](Cpu::Context& own, Index, Index count) {
    const auto mark = own.mark();
    auto some = own.scratch<float>(100);
    fill(own, some, 1.0f);
    done += static_cast<int>(count);
  });
  CHECK(done == 12);
  Cpu::for_tasks(ctx, 1, [&](Cpu::Context& own, Index, Index) { const auto mark = own.mark(); });
}
