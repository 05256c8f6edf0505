#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::metric {

/// The result of `corruption_error`: the error of a classifier for each kind of image corruption (CE), relative to a
/// baseline, and the mean of these errors (mCE).
struct CorruptionError {
  std::vector<double> of{};  // [C] CE of each corruption
  double mean = 0;
};

/// Returns the mean corruption error of a classifier, relative to a baseline classifier. error[c,s] and baseline[c,s]
/// are their shares of misclassified images under corruption c of severity s.
///
///     CE_c = Σ_s error[c,s] / Σ_s baseline[c,s],   mCE = (1/C) Σ_c CE_c                                    (1)
///
/// Source: Hendrycks and Dietterich 2019, arXiv:1903.12261, whose baseline is AlexNet; papers 001 and 002. The number
/// has a meaning only together with the name of its baseline, so report both.
/// @param error      [C, S] in  shares of images misclassified under corruption c of severity s
/// @param baseline   [C, S] in  the same shares of the baseline
/// @throws ArgumentError unless shapes fit, there is a corruption, and the baseline makes errors under each corruption
inline CorruptionError corruption_error(std::span<const double> error, std::span<const double> baseline,
                                        Index severities = 5) {
  const auto size = static_cast<Index>(error.size());
  expect(severities >= 1, "corruption_error", "severities", "at least 1", severities);
  expect(size >= severities && size % severities == 0, "corruption_error", "error",
         Joined{"a multiple of severities = ", severities}, size);
  expect(baseline.size() == error.size(), "corruption_error", "baseline",
         Joined{size, " numbers, as many as error has"}, baseline.size());
  CorruptionError result;
  const double corruptions = static_cast<double>(size / severities);
  for (std::size_t i = 0; i < error.size();) {
    double sum = 0, of_baseline = 0;
    for (Index s = 0; s < severities; ++s, ++i) {
      sum += error[i];
      of_baseline += baseline[i];
    }
    expect(of_baseline > 0, "corruption_error", "baseline", "an error above 0 for each corruption", of_baseline);
    result.of.push_back(sum / of_baseline);
    result.mean += result.of.back() / corruptions;
  }
  return result;
}

}  // namespace gatefold::metric
