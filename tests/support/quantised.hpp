#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"
#include "support/naive.hpp"

/// Equations (1) to (5) of core/weights.hpp as plain loops.
namespace gatefold::naive {

inline constexpr Weights quantised_forms[] = {Weights::int8, Weights::int4, Weights::mxfp4};

/// A group of values with one scale: value i is scale · q[i].
struct Group {
  double scale = 0;
  std::vector<double> q;
};

inline float bf16(double v) { return Bfloat16::from(static_cast<float>(v)); }
inline double not_a_number() { return std::numeric_limits<double>::quiet_NaN(); }

/// Rounds a group of weights, eq. (1) to (3).
inline Group quantised(Weights form, const std::vector<float>& w) {
  float largest = 0, most = 0;
  bool finite = true;
  for (const float v : w) {
    finite = finite && std::isfinite(v);
    if (std::abs(v) > largest) largest = std::abs(v), most = v;
  }
  Group group{0, std::vector<double>(w.size())};
  if (!finite) group.scale = not_a_number();
  if (!finite || largest == 0 || (form != Weights::mxfp4 && largest < 0x1p-100F)) return group;
  if (form == Weights::int8) group.scale = double(bf16(double(largest / 127.0F)));
  if (form == Weights::int4) group.scale = double(bf16(double(most / -8.0F)));
  if (form == Weights::mxfp4) {
    int e = -127;
    while (std::ldexp(6.0, e) < double(largest)) ++e;
    group.scale = std::ldexp(1.0, e);
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (form == Weights::mxfp4) {
      const double t = double(w[i]) / group.scale;
      const std::array<double, 8> sizes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
      std::size_t best = 0;  // of two equally near sizes, the one with the even index is taken
      for (std::size_t c = 1; c < 8; ++c) {
        const double old = std::abs(std::abs(t) - sizes[best]), now = std::abs(std::abs(t) - sizes[c]);
        if (now < old || (now == old && c % 2 == 0)) best = c;
      }
      group.q[i] = std::copysign(sizes[best], t);
    } else {
      const double low = form == Weights::int8 ? -127 : -8, high = form == Weights::int8 ? 127 : 7;
      group.q[i] = std::clamp(double(std::nearbyint(w[i] / static_cast<float>(group.scale))), low, high);
    }
  }
  return group;
}

/// Rounds a group of numbers of an item, eq. (4).
inline Group rounded_items(const std::vector<float>& x) {
  float a = 0;
  for (const float v : x) a = std::isfinite(v) ? std::max(a, std::abs(v)) : std::numeric_limits<float>::infinity();
  for (const float v : x)
    if (!std::isfinite(v)) a = std::numeric_limits<float>::infinity();
  Group group{0, std::vector<double>(x.size())};
  if (!std::isfinite(a)) group.scale = not_a_number();
  if (!std::isfinite(a) || a < 0x1p-100F) return group;
  group.scale = double(a / 127.0F);
  const float inverse = 127.0F / a;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const volatile float scaled = x[i] * inverse;
    group.q[i] = std::clamp(double(std::nearbyint(scaled)), -127.0, 127.0);
  }
  return group;
}

/// Returns at(k), …, at(k + 31), or fewer values if the depth ends earlier. at(i) is element i of an item or of a
/// column of weights.
template <class At>
std::vector<float> group_of(Index k, Index depth, const At& at) {
  std::vector<float> group;
  for (Index i = k; i < std::min(k + 32, depth); ++i) group.push_back(at(i));
  return group;
}

/// The result of eq. (5) in double, and the sum of the magnitudes of its terms.
struct QuantisedSum {
  double value = 0, magnitude = 0;
};
/// Computes eq. (5) for one item and one column of weights.
template <class X, class W>
QuantisedSum quantised_dot(Weights form, Index depth, const X& x, const W& w) {
  QuantisedSum sum;
  for (Index k = 0; k < depth; k += 32) {
    const Group items = rounded_items(group_of(k, depth, x)), weights = quantised(form, group_of(k, depth, w));
    double inner = 0;
    for (std::size_t i = 0; i < items.q.size(); ++i) inner += items.q[i] * weights.q[i];
    sum.value += items.scale * weights.scale * inner;
    sum.magnitude += std::abs(items.scale * weights.scale * inner);
  }
  return sum;
}

}  // namespace gatefold::naive
