#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <gatefold/core/philox.hpp>
#include <string>
#include <vector>

#include "routing_probabilities.hpp"
#include "summary.hpp"

/// Tests Lemma 1 of paper 003: ‖p − p̂‖∞ ≤ M² ‖h − ĥ‖∞. Here p and p̂ are the routing probabilities of M experts with
/// scores h and ĥ and uniform noise. Searches for the largest ratio of the two norms.
///
/// With noise r and Z = max_{m' ≠ m} (h_m' + r_m'), p_m is the mean of min(max(1 + h_m − Z, 0), 1) over r. If the
/// scores change from h to ĥ, h_m − Z changes by at most 2 ‖h − ĥ‖∞. Therefore no ratio exceeds 2, for any M. Without
/// noise, p is one-hot and there is no bound: if the best expert changes, the ratio is 1 / ‖h − ĥ‖∞. The smallest size
/// in kSizes must be so small that this ratio exceeds M² for every possible M.
namespace studies::expert_count::lemma1 {

inline constexpr std::array kSizes{1e-8, 1e-5, 1e-2, 1.0};  // values of ‖h − ĥ‖∞

inline double bound(std::size_t experts) { return static_cast<double>(experts * experts); }

/// Two vectors of scores: h, and ĥ = h + size · direction, which moved() returns.
struct Pair {
  std::vector<double> h, direction;  // direction: in [−1, 1], at least one element is ±1
  double size;

  std::vector<double> moved() const {
    std::vector<double> other = h;
    for (std::size_t m = 0; m < h.size(); ++m) other[m] += size * direction[m];
    return other;
  }
};
/// Returns the ratio in Lemma 1, ‖p − p̂‖∞ / ‖h − ĥ‖∞. The denominator is computed from h and ĥ, not from `size`,
/// because ĥ is rounded to double.
template <class F>
double ratio(const F& probabilities, const Pair& pair) {
  const std::vector<double> moved = pair.moved(), p = probabilities(pair.h), q = probabilities(moved);
  double of_p = 0, of_h = 0;
  for (std::size_t m = 0; m < p.size(); ++m) {
    of_p = std::max(of_p, std::abs(p[m] - q[m]));
    of_h = std::max(of_h, std::abs(pair.h[m] - moved[m]));
  }
  return of_p / of_h;
}

class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : seed_{gatefold::Seed{seed}.fork(11)} {}
  double uniform(double low, double high) { return low + (high - low) * gatefold::uniform<double>(seed_, 0, next_++); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform(0, static_cast<double>(n))); }

 private:
  gatefold::Seed seed_;
  std::uint64_t next_ = 0;
};

/// Draws scores in [0, spread] and a direction in which to move them. With probability 1/2, all elements of the
/// direction are ±1. Otherwise they are uniform in [−1, 1], except one element, which is ±1.
inline Pair random_pair(Numbers& numbers, std::size_t experts, double spread, double size) {
  Pair pair{std::vector<double>(experts), std::vector<double>(experts), size};
  for (double& v : pair.h) v = numbers.uniform(0, spread);
  const bool corners = numbers.uniform(0, 1) < 0.5;
  for (double& v : pair.direction) v = corners ? (numbers.uniform(-1, 1) < 0 ? -1 : 1) : numbers.uniform(-1, 1);
  pair.direction[numbers.below(experts)] = numbers.uniform(-1, 1) < 0 ? -1 : 1;
  return pair;
}

/// Searches for a larger ratio(), beginning with `pair`, and returns the largest. Each step changes one score or one
/// element of the direction at random, and keeps the change if the ratio grows.
template <class F>
double climb(const F& probabilities, Numbers& numbers, Pair pair, Index steps) {
  double best = ratio(probabilities, pair);
  for (Index i = 0; i < steps; ++i) {
    Pair next = pair;
    const std::size_t m = numbers.below(pair.h.size());
    if (numbers.uniform(0, 1) < 0.5) {
      next.h[m] += numbers.uniform(-0.2, 0.2);
    } else {
      next.direction[m] = numbers.uniform(-1, 1) < 0 ? -1 : 1;
    }
    if (const double r = ratio(probabilities, next); r > best) {
      best = r;
      pair = std::move(next);
    }
  }
  return best;
}

/// The largest ratios that search() finds: `random` among random pairs, `adversarial` after climb() from the best
/// random pair of each size, and `by_size` the result of climb() for each size.
struct Found {
  double random = 0, adversarial = 0;
  std::vector<double> by_size{};
};
/// Searches for the largest ratio of each size. The random pairs do not depend on `probabilities`.
/// @param searched  function that is called after the search for each size, to report progress
template <class F, class G>
Found search(const F& probabilities, std::size_t experts, Index trials, std::uint64_t seed, const G& searched) {
  Numbers numbers(seed);
  Found found;
  for (const double size : kSizes) {
    double worst = -1;
    Pair start;
    for (Index t = 0; t < trials; ++t) {
      constexpr std::array spreads{0.0, 0.1, 0.5, 2.0};
      const Pair pair = random_pair(numbers, experts, spreads[static_cast<std::size_t>(t) % spreads.size()], size);
      if (const double r = ratio(probabilities, pair); r > worst) {
        worst = r;
        start = pair;
      }
    }
    found.random = std::max(found.random, worst);
    found.by_size.push_back(climb(probabilities, numbers, start, trials));
    found.adversarial = std::max(found.adversarial, found.by_size.back());
    searched();
  }
  return found;
}

/// Returns the largest difference between the exact probabilities and their frequencies in `draws` draws of the noise.
inline double difference_to_draws(const RoutingProbabilities& exact, std::size_t experts, Index draws,
                                  std::uint64_t seed) {
  Numbers numbers(seed);
  const Pair pair = random_pair(numbers, experts, 0.5, 0.1);
  std::vector<double> counted(experts);
  for (Index i = 0; i < draws; ++i) {
    std::size_t best = 0;
    double top = -1;
    for (std::size_t m = 0; m < experts; ++m)
      if (const double v = pair.h[m] + numbers.uniform(0, 1); v > top) {
        top = v;
        best = m;
      }
    counted[best] += 1 / static_cast<double>(draws);
  }
  const std::vector<double> p = exact(pair.h);
  double difference = 0;
  for (std::size_t m = 0; m < experts; ++m) difference = std::max(difference, std::abs(p[m] - counted[m]));
  return difference;
}

/// Tests Lemma 1. Searches for the largest ratio ‖p − p̂‖∞ / ‖h − ĥ‖∞ for each of kSizes, with noise and, as a control,
/// without noise. Also compares the exact probabilities with frequencies of random draws.
inline Json measure(std::size_t experts, Index trials, Index draws, std::uint64_t seed, const Report& report) {
  const RoutingProbabilities exact(experts);
  std::size_t sizes = 0;
  const Found with = search(exact, experts, trials, seed,
                            [&] { report(static_cast<double>(++sizes) / static_cast<double>(kSizes.size())); });
  const Found without = search(without_noise, experts, trials, seed, [] {});
  return {{"random", with.random},
          {"adversarial", with.adversarial},
          {"by_size", with.by_size},
          {"without_noise", without.adversarial},
          {"without_noise_by_size", without.by_size},
          {"difference_to_draws", difference_to_draws(exact, experts, draws, seed)}};
}

inline std::string label(Index experts) { return "lemma1.m" + std::to_string(experts); }

inline void add(const Options& o, Jobs& jobs) {
  for (const Index m : o.experts)
    jobs.add(label(m), 1, [&o, m](std::uint64_t seed) {
      return Run{{},
                 {{"experts", m}, {"trials", o.trials}, {"draws", o.draws}, {"sizes", kSizes}},
                 [m, seed, trials = o.trials, draws = o.draws](const Report& report) {
                   return measure(static_cast<std::size_t>(m), trials, draws, seed, report);
                 },
                 static_cast<double>(o.trials * m * m * m)};
    });
}

inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  const std::vector<double> experts = as_doubles(o.experts);
  Lines lines{.title = "Lemma 1: how far routing follows the scores",
              .x_label = "experts M",
              .y_label = "largest |p − p'| / |h − h'|",
              .log_x = true,
              .log_y = true,
              .curves = {}};
  Curve of_lemma{"bound M²", experts, {}, {}}, found{"with noise", experts, {}, {}},
      control{"without noise", experts, {}, {}};
  for (const Index m : o.experts) {
    const Json& run = jobs.of(label(m)).front();
    of_lemma.y.push_back(bound(static_cast<std::size_t>(m)));
    found.y.push_back(number(run.at("adversarial")));
    control.y.push_back(number(run.at("without_noise")));
    for (const char* key : {"random", "adversarial", "without_noise", "difference_to_draws"})
      summary.add(label(m) + "." + key, values(jobs.of(label(m)), key));
    summary.curves["lemma1"][label(m)] = {{"size", kSizes},
                                          {"ratio", run.at("by_size")},
                                          {"ratio_without_noise", run.at("without_noise_by_size")},
                                          {"bound", m * m}};
  }
  lines.curves = {of_lemma, found, control};
  summary.draw("lemma1.svg", {lines}, 1);
}

}  // namespace studies::expert_count::lemma1
