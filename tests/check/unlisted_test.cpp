#include "gatefold/check/unlisted.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/table.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

template <int Rank>
using Floats = Tensor<float, Rank, Cpu>;

struct Whole {
  Floats<1> gain;
  Floats<2> weight;
  Table<float, Cpu> words;
  static void each(auto&& f, auto&... p) {
    f("words", p.words...);
    f("gain", p.gain...);
    f("weight", p.weight...);
  }
};
/// A pack that leaves out a tensor of this rank, before or after another one.
template <int Rank, bool First>
struct Short;
template <int Rank>
struct Short<Rank, true> {
  Floats<Rank> left_out;
  Floats<1> gain;
  static void each(auto&& f, auto&... p) { f("gain", p.gain...); }
};
template <int Rank>
struct Short<Rank, false> {
  Floats<1> gain;
  Floats<Rank> left_out;
  static void each(auto&& f, auto&... p) { f("gain", p.gain...); }
};
struct Twice {
  Floats<1> gain, bias;
  static void each(auto&& f, auto&... p) {
    f("gain", p.gain...);
    f("bias", p.bias...);
    f("scale", p.gain...);
  }
};
struct Namesakes {
  Floats<1> gain, bias;
  static void each(auto&& f, auto&... p) {
    f("gain", p.gain...);
    f("gain", p.bias...);
  }
};
/// A pack with numbers that it does not list. The numbers have fewer bytes than a tensor.
struct Numbers {
  Index step = 0;
  bool warm = false;
  Floats<1> gain;
  double rate = 0;
  static void each(auto&& f, auto&... p) { f("gain", p.gain...); }
};
template <class... P>
struct Of {
  std::tuple<P...> parts;
  std::vector<Whole> layers{};
  static void each(auto&& f, auto&... p) {
    f("parts", p.parts...);
    f("layers", p.layers...);
  }
};
/// A pack that lists the tensors of its part instead of the part.
struct Around {
  Whole inner;
  static void each(auto&& f, auto&... p) { Whole::each(f, p.inner...); }
};
/// A pack that lists a part behind a pointer.
struct Behind {
  std::unique_ptr<Whole> inner = std::make_unique<Whole>();
  std::string text{};
  static void each(auto&& f, auto&... p) { f("inner", *p.inner...); }
};
struct Derived : Whole {
  Floats<1> bias;
  static void each(auto&& f, auto&... p) {
    Whole::each(f, p...);
    f("bias", p.bias...);
  }
};
struct DerivedShort : Whole {
  Floats<1> bias;
};

template <class P>
std::vector<std::string> unlisted_of(const P& p = {}) {
  return check::unlisted<Cpu>(p, "params");
}
std::string sentence(const std::string& at, int bytes) {
  return at + ": " + std::to_string(bytes) +
         " consecutive bytes belong to no tensor or pack that its `each` lists; a tensor that is not listed is not "
         "learned, copied or saved";
}

template <int Rank>
void check_rank() {
  const std::vector<std::string> says{sentence("params", sizeof(Floats<Rank>))};
  CHECK(unlisted_of<Short<Rank, true>>() == says);
  CHECK(unlisted_of<Short<Rank, false>>() == says);
}

}  // namespace

TEST_CASE("unlisted: complete packs give no report") {
  CHECK(unlisted_of<Whole>().empty());
  CHECK(unlisted_of<Nothing<float, Cpu>>().empty());
  CHECK(unlisted_of<Numbers>().empty());
  CHECK(unlisted_of<Around>().empty());
  CHECK(unlisted_of<Derived>().empty());
  CHECK(unlisted_of<std::vector<Whole>>(std::vector<Whole>(3)).empty());
  CHECK(unlisted_of<Floats<1>>().empty());
  CHECK(unlisted_of<Of<Whole, Nothing<float, Cpu>, Numbers>>().empty());
}

TEST_CASE("unlisted: a missing tensor of any rank is found") {
  check_rank<1>();
  check_rank<2>();
  check_rank<3>();
  check_rank<4>();
  CHECK(unlisted_of<DerivedShort>() == std::vector<std::string>{sentence("params", sizeof(Floats<1>))});
}

TEST_CASE("unlisted: searches nested parts and reports each one") {
  using Two = Of<Whole, Short<1, true>, Of<Short<2, false>>>;
  CHECK(unlisted_of<Two>() == std::vector<std::string>{sentence("params.parts.1", sizeof(Floats<1>)),
                                                       sentence("params.parts.2.parts.0", sizeof(Floats<2>))});
  std::vector<Short<1, false>> rows(2);
  CHECK(unlisted_of<std::vector<Short<1, false>>>(rows) ==
        std::vector<std::string>{sentence("params.0", sizeof(Floats<1>)), sentence("params.1", sizeof(Floats<1>))});
}

TEST_CASE("unlisted: packs that refer to other memory are ignored") { CHECK(unlisted_of<Behind>().empty()); }

TEST_CASE("unlisted: duplicate tensors and duplicate names are found") {
  const std::string twice = ": its `each` lists a tensor twice, as gain and as scale: it would be learned twice",
                    name = ": its `each` lists two parts with the name gain";
  CHECK(unlisted_of<Twice>() == std::vector<std::string>{"params" + twice});
  CHECK(unlisted_of<Namesakes>() == std::vector<std::string>{"params" + name});
  CHECK(unlisted_of<Of<Whole, Twice, Namesakes>>() ==
        std::vector<std::string>{"params.parts.1" + twice, "params.parts.2" + name});
}
