#pragma once

namespace gatefold::support {

/// The larger of two numbers, NaN if one is: std::max(worst, v) would pass over an error that is no number.
inline double larger(double worst, double v) { return v <= worst || worst != worst ? worst : v; }

}  // namespace gatefold::support
