#include "gatefold/gate/route_rows.hpp"

#include <doctest/doctest.h>

#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

/// Functors that log their calls in order.
struct Mix {
  std::string* log;
  template <class Lanes>
  void operator()(const Lanes&, Index n) const {
    *log += "mix " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void row(const Lanes&, Index, const double* z, double* q) const {
    *log += "mix " + std::to_string(z[0]).substr(0, 1) + ";";
    q[0] = 2 * z[0];
  }
};
struct Pick {
  std::string* log;
  View<double, 2, Cpu> dq{};
  template <class Lanes>
  void choose(const Lanes&, Index n) const {
    *log += "choose " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void weigh(const Lanes&, Index n) const {
    *log += "weigh " + std::to_string(n) + ";";
  }
  template <class Lanes>
  void choose(const Lanes&, Index, const double* rank) const {
    *log += "choose " + std::to_string(rank[0]).substr(0, 1) + ";";
  }
  template <class Lanes>
  void weigh(const Lanes&, Index, const double* q) const {
    *log += "weigh " + std::to_string(q[0]).substr(0, 1) + ";";
  }
  template <class Lanes>
  void operator()(const Lanes&, Index n) const {
    *log += "pick " + std::to_string(n) + ";";
    dq(n, 1) += 3;
  }
};

}  // namespace

TEST_CASE("RouteRow: chooses before mixing and computes weights after it") {
  Cpu::Context ctx(1);
  std::string log;
  Cpu::for_rows(ctx, 1, functor::RouteRow{Mix{&log}, Pick{&log}});
  CHECK(log == "choose 0;mix 0;weigh 0;");
}

TEST_CASE("RouteRowAnywhere: writes q to its row or over the logits") {
  Tensor<double, 2, Cpu> q(2, 1);
  std::string log;
  double z[] = {3};
  const OneLane lanes{};
  functor::RouteRowAnywhere{Mix{&log}, Pick{&log}, q.view()}(lanes, Index(1), z);
  CHECK(log == "choose 3;mix 3;weigh 6;");
  CHECK(q(1, 0) == 6);
  CHECK(z[0] == 3);
  log.clear();
  functor::RouteRowAnywhere{Mix{&log}, Pick{&log}, View<double, 2, Cpu>(nullptr, 2, 1)}(lanes, Index(1), z);
  CHECK(log == "choose 3;mix 3;weigh 6;");
  CHECK(z[0] == 6);
}

TEST_CASE("RouteRowBackward: dq starts at 0 or at given values") {
  Cpu::Context ctx(1);
  for (const bool accumulate : {false, true}) {
    Tensor<double, 2, Cpu> dq(1, 2);
    dq(0, 0) = 5, dq(0, 1) = 7;
    std::string log;
    Cpu::for_rows(ctx, 1, functor::RouteRowBackward{Mix{&log}, Pick{&log, dq.view()}, dq.view(), accumulate});
    CHECK(log == "pick 0;mix 0;");
    CHECK(dq(0, 0) == (accumulate ? 5 : 0));
    CHECK(dq(0, 1) == (accumulate ? 10 : 3));
  }
}
