#include "gatefold/policy/probe.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

namespace {

struct LearnsNothing {};

template <class T, class B>
struct Weight {
  Tensor<T, 1, B> weight;
};

struct Learns {
  template <class T, class B>
  using Params = Weight<T, B>;
  template <class T, class B>
  Params<T, B> init(typename B::Context&, Seed) const {
    return {};
  }
};
struct WithoutInit {
  template <class T, class B>
  using Params = Weight<T, B>;
};
struct OtherResult : WithoutInit {
  template <class T, class B>
  int init(typename B::Context&, Seed) const {
    return 0;
  }
};
struct NotConst : WithoutInit {
  template <class T, class B>
  Weight<T, B> init(typename B::Context&, Seed) {
    return {};
  }
};

}  // namespace

TEST_CASE("HasInit: a policy with Params needs a matching init") {
  static_assert(detail_::policy::HasInit<LearnsNothing, float, Cpu>);
  static_assert(detail_::policy::HasInit<Learns, float, Cpu>);
  static_assert(!detail_::policy::HasInit<WithoutInit, float, Cpu>);
  static_assert(!detail_::policy::HasInit<OtherResult, float, Cpu>);
  static_assert(!detail_::policy::HasInit<NotConst, float, Cpu>);
  CHECK(detail_::policy::HasInit<Learns, double, Cpu>);
}

TEST_CASE("Probe: holds arguments for forward and backward") {
  Cpu::Context ctx(1);
  const detail_::policy::Probe<float, Cpu> probe{ctx, {}, {}, {}};
  CHECK(probe.in.empty());
  CHECK(probe.out.empty());
  CHECK(probe.groups.slots == 0);
  CHECK(&probe.ctx == &ctx);
}

namespace {

template <bool Fits>
struct Composed {};

}  // namespace

namespace gatefold::detail_::policy {

template <bool Fits>
struct Parts<Composed<Fits>> {
  template <class T, class B>
  static constexpr bool check() {
    return Fits;
  }
};

}  // namespace gatefold::detail_::policy

TEST_CASE("parts_fit: checks a composition's parts, if it has parts") {
  CHECK(detail_::policy::parts_fit<Composed<true>, float, Cpu>());
  CHECK_FALSE(detail_::policy::parts_fit<Composed<false>, float, Cpu>());
  CHECK(detail_::policy::parts_fit<LearnsNothing, float, Cpu>());
}

TEST_CASE("is_misplaced: recognises the type deduced for misplaced parts") {
  CHECK(detail_::policy::is_misplaced<detail_::policy::Misplaced<>>);
  CHECK(detail_::policy::is_misplaced<detail_::policy::Misplaced<int, Learns>>);
  CHECK_FALSE(detail_::policy::is_misplaced<Learns>);
}
