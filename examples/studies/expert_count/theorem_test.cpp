#include "theorem.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lemma1.hpp"
#include "reference.hpp"

using namespace studies;
using namespace studies::expert_count;

namespace {

/// Errors of three experts on four clusters. The clusters with the lowest errors are 0, 2 and 2.
const theorem::Errors kErrors{{0.1, 0.4, 0.5, 0.6}, {0.3, 0.2, 0.1, 0.4}, {0.5, 0.5, 0.05, 0.45}};
const theorem::Errors kShares{{0.7, 0.2, 0.1}, {0.5, 0.5, 0}, {0, 0.25, 0.75}, {1, 0, 0}};  // [K][M]

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "theorem_test.XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

/// Two hand-made runs of one label, with different seeds.
struct Case {
  Folder folder;
  Options options;
  Jobs jobs{options};
  StudySummary summary;
  std::map<std::string, std::vector<double>> found;

  Case() {
    options.common.out = folder.path;
    options.common.threads = 1;
    jobs.add("x", 2, [](std::uint64_t seed) {
      return Run{{}, {{"of", "test"}}, [seed](const Report&) { return run(seed); }, 1};
    });
    jobs.compute();
  }
  /// For the second seed, all experts have cluster 1, at the start and at the end.
  static Json run(std::uint64_t seed) {
    const std::vector<int> start = seed == 1 ? std::vector{0, 1, 2} : std::vector{1, 1, 1},
                           end = seed == 1 ? std::vector{0, 3, 2} : std::vector{1, 1, 1};
    return {{"routing", kShares},
            {"experts",
             {{"start", {{"specialised", start}}},
              {"t1", {{"errors", kErrors}}},
              {"end", {{"errors", kErrors}, {"specialised", end}}}}}};
  }
  const std::vector<double>& of(const std::string& name) {
    for (const Result& r : summary.results) found[r.name] = r.values;
    return found.at(name);
  }
};

void check_values(const std::vector<double>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-13));
}

}  // namespace

TEST_CASE("stage: averages errors on own, other and best clusters") {
  const theorem::Stage s = theorem::stage(kErrors, {0, 1, 3});
  CHECK(s.own == doctest::Approx((0.1 + 0.2 + 0.45) / 3).epsilon(1e-13));
  CHECK(s.other == doctest::Approx((1.5 + 0.8 + 1.05) / 9).epsilon(1e-13));
  CHECK(s.best == doctest::Approx((0.1 + 0.1 + 0.05) / 3).epsilon(1e-13));
  CHECK(s.covered == 2);
}

TEST_CASE("routed: averages the share that clusters send to own experts") {
  const Json run{{"routing", kShares}};
  CHECK(theorem::routed(run, {0, 1, 2}) == doctest::Approx((0.7 + 0.5 + 0.75) / 4).epsilon(1e-13));
  CHECK(theorem::routed(run, {1, 1, 3}) == doctest::Approx((0 + 1.0 + 0 + 0) / 4).epsilon(1e-13));
}

TEST_CASE("report_stages: uses the clusters of the start at both stages") {
  Case c;
  theorem::report_stages(c.jobs, "x", "n", c.summary);
  for (const std::string at : {"n.t1.", "n.end."}) {
    check_values(c.of(at + "own_error"), {(0.1 + 0.2 + 0.05) / 3, (0.4 + 0.2 + 0.5) / 3});
    check_values(c.of(at + "other_error"), {(1.5 + 0.8 + 1.45) / 9, (1.2 + 0.8 + 1.0) / 9});
    check_values(c.of(at + "best_error"), {0.25 / 3, 0.25 / 3});
    check_values(c.of(at + "covered"), {2, 2});
  }
}

TEST_CASE("report_sets: reports non-empty sets, kept clusters and routed shares") {
  Case c;
  theorem::report_sets(c.jobs, {"x", {}}, "n", c.summary);
  check_values(c.of("n.non_empty_sets"), {3, 1});
  check_values(c.of("n.kept"), {2.0 / 3, 1});
  check_values(c.of("n.routed_to_own"), {(0.7 + 0.5 + 0.75) / 4, 1.0 / 4});
  check_values(c.of("n.routed_to_best"), {(0.7 + 0.25 + 0.75) / 4, (0.7 + 0.25 + 0.75) / 4});
}

TEST_CASE("lemma 1: holds with noise and fails without noise") {
  for (const std::size_t experts : {2, 4, 16, 64}) {
    CAPTURE(experts);
    const RoutingProbabilities exact(experts);
    const lemma1::Found with = lemma1::search(exact, experts, 24, 1, [] {}),
                        without = lemma1::search(without_noise, experts, 24, 1, [] {});
    CHECK(with.adversarial <= lemma1::bound(experts));
    CHECK(with.adversarial <= 2 + 1e-5);              // bound 2 from the derivative of p_m, plus rounding
    if (experts == 2) CHECK(with.adversarial > 1.9);  // equal scores that move apart reach the ratio 2
    CHECK(without.adversarial > lemma1::bound(experts));
    REQUIRE(without.by_size.size() == lemma1::kSizes.size());
    // Without noise, a probability changes by 1 if the best expert changes.
    for (std::size_t i = 0; i < lemma1::kSizes.size(); ++i)
      CHECK(without.by_size[i] * lemma1::kSizes[i] == doctest::Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("most_experts, least_experts: equal theorem 1 without constants") {
  CHECK(theorem::most_experts(1e-4) == doctest::Approx(std::pow(10, 0.3)).epsilon(1e-13));
  CHECK(theorem::least_experts() == doctest::Approx(4 * 1.38629436112 * 1.364054632888).epsilon(1e-11));
}

TEST_CASE("of_published_size: is false for every changed size") {
  CHECK(reference::of_published_size({}));
  for (Index Setting::*size : {&Setting::train, &Setting::test, &Setting::iterations}) {
    Setting s;
    s.*size /= 2;
    CHECK_FALSE(reference::of_published_size(s));
  }
}
