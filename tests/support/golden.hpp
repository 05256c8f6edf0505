#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/pass.hpp"

/// Compares the library with PyTorch (float64, autograd). The files and scripts are in tests/golden.
namespace gatefold::support {

/// One case of a golden file. For each tensor, the file has a line `name rank extents…`, the values in little-endian
/// order and a line end. The class remembers which tensors a test has read.
class Golden {
 public:
  /// Returns every case of a file, which must have at least three.
  static std::vector<Golden> read_all(const std::string& file) {
    std::ifstream from(GATEFOLD_TEST_DIR "/golden/" + file + ".f64", std::ios::binary);
    REQUIRE_MESSAGE(from.good(), file);
    std::vector<Golden> cases;
    for (std::string word; from >> word;) {
      if (word == "case") {
        from >> cases.emplace_back().name;
      } else {
        REQUIRE_MESSAGE(!cases.empty(), file);
        cases.back().parse(word, from);
      }
    }
    REQUIRE_MESSAGE(from.eof(), file);
    REQUIRE_MESSAGE(cases.size() >= 3, file);
    return cases;
  }

  std::string name;

  bool has(const std::string& tensor) const { return entries_.count(tensor) > 0; }
  const std::vector<double>& values(const std::string& tensor) { return entry(tensor).values; }
  std::vector<Index> indices(const std::string& tensor) {
    const auto& v = values(tensor);
    return {v.begin(), v.end()};
  }
  double option(const std::string& option) { return entry("options." + option).values[0]; }
  bool flag(const std::string& of) { return option(of) != 0; }
  Index extent(const std::string& of) { return static_cast<Index>(option(of)); }
  Index items() { return entry("x").shape[0]; }
  Tensor<double, 2, Cpu> matrix(const std::string& tensor) {
    const auto& shape = entry(tensor).shape;
    REQUIRE_MESSAGE(shape.size() == 2, tensor);
    Tensor<double, 2, Cpu> to(shape[0], shape[1]);
    copy(tensor, to.data());
    return to;
  }

  template <class P>
  void read(const std::string& prefix, P& pack) {
    const auto read_one = [&](const Name& at, auto& t) {
      if (holds(prefix, at, t.size())) copy(named(prefix, at, shape_of(t)), t.data());
    };
    for_each_tensor(read_one, pack);
  }
  template <class P>
  void compare(const std::string& prefix, const P& pack) {
    const auto compare_one = [&](const Name& at, const auto& t) {
      if (holds(prefix, at, t.size())) compare(named(prefix, at, shape_of(t)), support::values(t));
    };
    for_each_tensor(compare_one, pack);
  }
  void compare(const std::string& tensor, const std::vector<double>& got) {
    const auto& expected = values(tensor);
    if (std::all_of(expected.begin(), expected.end(), [](double v) { return v == 0; })) {
      // The exact gradient is 0. The computed one may differ from 0 by the rounding errors of numbers of about 1.
      for (const double v : got) CHECK_MESSAGE(std::abs(v) <= 1e-13, tensor << " is not 0 but " << v);
      CHECK(got.size() == expected.size());
      return;
    }
    const double worst = difference(got, expected, 1e-3);
    CHECK_MESSAGE(worst <= 1e-10, tensor << " differs by " << worst);
  }
  /// Returns the names of the tensors that the test has not read, separated by spaces.
  std::string unread() const {
    std::string names;
    for (const auto& [tensor, entry] : entries_)
      if (!read_.count(tensor)) names += tensor + " ";
    return names;
  }

 private:
  struct Entry {
    std::vector<Index> shape;
    std::vector<double> values;
  };
  void parse(const std::string& tensor, std::ifstream& from) {
    std::size_t rank = 0, size = 1;
    from >> rank;
    REQUIRE_MESSAGE(rank <= 4, tensor);
    Entry& entry = entries_[tensor];
    REQUIRE_MESSAGE(entry.values.empty(), tensor << " is there twice");
    entry.shape.resize(rank);
    for (Index& n : entry.shape) {
      from >> n;
      size *= static_cast<std::size_t>(n);
    }
    REQUIRE_MESSAGE(from.get() == '\n', tensor);
    entry.values.resize(size);
    static_assert(std::endian::native == std::endian::little);
    from.read(reinterpret_cast<char*>(entry.values.data()), static_cast<std::streamsize>(size * sizeof(double)));
    REQUIRE_MESSAGE((from && from.get() == '\n'), tensor);
  }
  const Entry& entry(const std::string& tensor) {
    const auto found = entries_.find(tensor);
    REQUIRE_MESSAGE(found != entries_.end(), tensor << " is missing");
    read_.insert(tensor);
    return found->second;
  }
  template <class Tensor>
  static std::vector<Index> shape_of(const Tensor& t) {
    std::vector<Index> shape;
    for (int d = 0; d < Tensor::rank; ++d) shape.push_back(t.extent(d));
    return shape;
  }
  static std::vector<Index> without_leading_ones(const std::vector<Index>& shape) {
    return {std::find_if(shape.begin(), shape.end(), [](Index n) { return n != 1; }), shape.end()};
  }
  /// Returns whether the file must have a tensor of a pack. A file can lack a tensor without elements.
  bool holds(const std::string& prefix, const Name& at, Index size) const {
    return size > 0 || has(at.str().empty() ? prefix : prefix + "." + at.str());
  }
  /// Returns the name that a tensor of a pack has in the file. Requires that the shapes in file and pack are equal,
  /// except for leading extents of 1.
  std::string named(const std::string& prefix, const Name& at, const std::vector<Index>& shape) {
    const std::string tensor = at.str().empty() ? prefix : prefix + "." + at.str();
    REQUIRE_MESSAGE(without_leading_ones(entry(tensor).shape) == without_leading_ones(shape), tensor);
    return tensor;
  }
  void copy(const std::string& tensor, double* to) {
    const auto& from = values(tensor);
    std::copy(from.begin(), from.end(), to);
  }

  std::map<std::string, Entry> entries_;
  std::set<std::string> read_;
};

/// Checks that a layer, branch or expert computes all results of the case from the inputs of the case. give(pass.extra)
/// sets the extra inputs of the layer.
template <class L, class Give>
void agrees(Golden& g, const L& layer, Give&& give) {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, layer, g.items());
  g.read("params", p.params);
  g.read("x", p.x);
  g.read("dy", p.dy);
  g.read("carry", p.carry);
  g.read("dafter", p.dcarry);
  give(p.extra);
  p.forward();
  g.compare("y", p.y);
  g.compare("after", p.carry);
  std::vector<double> auxiliary;
  for_each_mixture(p.saved, [&](const auto& m) {
    if constexpr (requires { m.gate.auxiliary; })
      for (const double v : values(m.gate.auxiliary)) auxiliary.push_back(v);
  });
  if (!auxiliary.empty()) g.compare("auxiliary", auxiliary);
  p.backward();
  g.compare("dx", p.dx);
  g.compare("dcarry", p.dcarry);
  g.compare("grads", p.grads);
  CHECK(g.unread() == "");
}

/// Checks every case of a file. layer(case) makes the layer from the options of the case.
template <class Make, class Give>
void agrees(const std::string& file, Make&& layer, Give&& give) {
  for (Golden& g : Golden::read_all(file)) {
    CAPTURE(file);
    CAPTURE(g.name);
    agrees(g, layer(g), [&](auto& extra) { give(g, extra); });
  }
}
template <class Make>
void agrees(const std::string& file, Make&& layer) {
  agrees(file, layer, [](Golden&, auto&) {});
}

}  // namespace gatefold::support
