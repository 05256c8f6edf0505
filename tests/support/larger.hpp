#pragma once

namespace gatefold::support {

/// Returns the larger of two numbers, or NaN if one is NaN. std::max(worst, v) would ignore an error that is NaN.
inline double larger(double worst, double v) { return v <= worst || worst != worst ? worst : v; }

}  // namespace gatefold::support
