// Tests the propositions, the theorem and the lemma of paper 000, Mixture of Transformers, on the data of definition 1
// of the paper. Also trains the three baselines of the paper. The paper has no experiment on these data and leaves all
// constants open. `mot --defaults` lists the values chosen here, with reasons.
//
//   mot [--classes 4] [--experts 16] [--samples 1024] [--t1 50] [--t2 250] [--epochs 800] …
//   mot --router-rates [0.1,1.6,25.6]    only the router's rate
//   mot --floor 8000                     only the model without attention, for many epochs
//   mot --growing [4,8,16,32]            only stages I and II whose lengths grow with the number of experts
//   mot --variants                       only variants of the experts and of the router
//
// The exit code is 0 after success, 2 if an option or a file is not valid (one line on stderr names it), and 1 after
// any other error.

#include "../support/study.hpp"
#include "cases.hpp"
#include "draw.hpp"
#include "floor.hpp"
#include "growing.hpp"
#include "options.hpp"
#include "report.hpp"
#include "router_rates.hpp"
#include "variants.hpp"

namespace {

using namespace studies;
using namespace studies::mot;

/// Returns the data of the pictures: the curves of each model and, for the first run of MoT, the measurements at the
/// start and after each stage, and the attention in every measured epoch.
Json curves(const Cases& cases, const Questions& q) {
  Json all = Json::object();
  for (std::size_t m = 0; m < q.models.size(); ++m) {
    const std::vector<Json> runs = cases.of(q.models[m]);
    Json& of = all[name(static_cast<Model>(m))];
    of["epoch"] = runs[0]["epoch"];
    for (const char* key : {"test_loss", "test_accuracy", "noisy_loss", "noisy_accuracy", "train_loss"})
      if (runs[0].contains(key)) of[key] = curve("", runs, key).y;
  }
  const Json first = cases.of(q.models[0])[0];
  for (const char* key : {"start", "t1", "t2", "end", "start_noisy", "t1_noisy", "t2_noisy", "end_noisy", "attention",
                          "attention_routed"})
    all["first_seed"][key] = first[key];
  return all;
}

void run(const Options& o) {
  Data::of(o.base).validate();
  if (!o.router_rates.empty()) return run_router_rates(o);
  if (o.floor > 0) return run_floor(o);
  if (!o.growing.empty()) return run_growing(o);
  if (o.variants) return run_variants(o);
  Cases cases(o);
  const Questions questions(o, cases);
  cases.compute();
  const std::vector<Result> results = Numbers(o, cases, questions).all();
  Json options = o.json();
  Setting::each(o.base, [&](const std::string& option, const auto&, const char*, const char*, const char* why) {
    options["reasons_of_defaults"][option.substr(2)] = why;
  });
  write_results(o.common, "mot", options, results, curves(cases, questions));
  Pictures(o, cases, questions).draw();
  print_results(results);
  finish(o.common, options, results);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Test the claims of paper 000 on mixtures of transformers, on the data of the paper");
  Options options;
  add_options(app, options);
  return study_main("mot", app, argc, argv, [&] {
    settle(app, options);
    options.defaults ? print_defaults() : run(options);
  });
}
