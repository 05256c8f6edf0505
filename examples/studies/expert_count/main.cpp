// Repeats the figures of paper 003, "On the impact of expert count in mixture of experts". Tests the theorem and the
// lemmas of the paper, and varies the choices that the paper leaves open. Also repeats the experiments of the code of
// Chen et al. 2022 (uclaml/MoE), because the paper repeats the setup of that code.
//
//   expert_count [--study sweep|theorem|init|lemma1|top-k|unequal|choices|reference|data-sets|parts|all]
//                [--reference s1|…|all] …
//
// The exit code is 0 after success, 2 if an option or a file is not valid (one line on stderr names it), and 1 after
// any other error.

#include <algorithm>

#include "../support/study.hpp"
#include "choices.hpp"
#include "data_sets.hpp"
#include "init.hpp"
#include "jobs.hpp"
#include "lemma1.hpp"
#include "options.hpp"
#include "outlook.hpp"
#include "parts.hpp"
#include "reference.hpp"
#include "self_check.hpp"
#include "summary.hpp"
#include "sweep.hpp"
#include "theorem.hpp"

namespace {

using namespace studies;
using namespace studies::expert_count;

struct Study {
  const char* name;
  void (*add)(const Options&, Jobs&);
  void (*report)(const Options&, const Jobs&, StudySummary&);
};
constexpr Study kStudies[]{{"sweep", sweep::add, sweep::report},
                           {"theorem", theorem::add, theorem::report},
                           {"init", init::add, init::report},
                           {"lemma1", lemma1::add, lemma1::report},
                           {"top-k", outlook::add_picks, outlook::report_picks},
                           {"unequal", outlook::add_decays, outlook::report_decays},
                           {"choices", choices::add, choices::report},
                           {"reference", reference::add, reference::report},
                           {"data-sets", data_sets::add, data_sets::report},
                           {"parts", parts::add, parts::report}};

Json json(const Options& o) {
  Json j = o.base.json();
  for (const char* filled : {"expert", "patches", "experts", "k", "decay", "eta_router", "equal_patches", "seed"})
    j.erase(filled);
  j.update({{"studies", o.studies},
            {"reference", o.references},
            {"experts", o.experts},
            {"patches", o.patches},
            {"expert", o.expert},
            {"picks", o.picks},
            {"decays", o.decays},
            {"eta_router", o.eta_router},
            {"trials", o.trials},
            {"draws", o.draws},
            {"data_sets", o.data_sets},
            {"seed", o.common.seed},
            {"seeds", o.common.seeds},
            {"reference_seeds", o.reference_seeds}});
  return j;
}

/// @throws ArgumentError if the command line has a value, for example of --experts, that none of the chosen studies
///   uses
void expect_taken(const Options& o, const Jobs& jobs) {
  const auto expect_all = [&](const char* option, const char* key, const auto& values) {
    if (!o.given(option)) return;
    for (const auto& value : values)
      gatefold::expect(jobs.have(key, value), "options", option, "values that the chosen studies use", value);
  };
  expect_all("--experts", "experts", o.experts);
  expect_all("--patches", "patches", o.patches);
  expect_all("--picks", "k", o.picks);
  expect_all("--decay", "decay", o.decays);
}

void run(const Options& o) {
  const auto chosen = [&](const Study& study) {
    return std::any_of(o.studies.begin(), o.studies.end(),
                       [&](const std::string& s) { return s == study.name || s == "all"; });
  };
  Jobs jobs(o);
  for (const Study& study : kStudies)
    if (chosen(study)) study.add(o, jobs);
  expect_taken(o, jobs);
  jobs.compute();
  StudySummary summary;
  for (const Study& study : kStudies)
    if (chosen(study)) study.report(o, jobs, summary);
  write_results(o.common, "expert_count", json(o), summary.results, summary.curves);
  summary.draw_all(o.common.out);
  print_results(summary.results);
  finish(o.common, json(o), summary.results);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Repeat paper 003 on the number of experts, and the code of Chen et al. whose setup the paper uses");
  Options options;
  add_options(app, options);
  return study_main("expert_count", app, argc, argv, [&] {
    settle(app, options);
    options.self_check ? self_check() : run(options);
  });
}
