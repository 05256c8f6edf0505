#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../support/page.hpp"
#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "cases.hpp"
#include "draw.hpp"
#include "report.hpp"

/// Compares MoT with its variants: experts with separate keys, queries and values, and a router of embedded tokens.
namespace studies::mot {

inline void run_variants(const Options& o) {
  Cases cases(o);
  std::vector<std::size_t> numbers_of;
  const std::vector<Model> models{Model::mot, Model::unmerged, Model::unmerged_fast, Model::embedded_router};
  for (const Model m : models) numbers_of.push_back(cases.add(m, o.base));
  cases.compute();

  std::vector<Result> results;
  Lines loss{.title = "Test loss", .x_label = "epoch", .y_label = "loss", .log_y = true},
      right{.title = "Test accuracy", .x_label = "epoch", .y_label = "accuracy"};
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::vector<Json> runs = cases.of(numbers_of[i]);
    const std::string of = name(models[i]);
    for (const char* key : {"test_loss", "test_accuracy"})
      results.push_back({of + '.' + key, numbers(runs, [key](const Json& run) { return number(run[key].back()); })});
    for (const char* when : {"t1", "end"})
      for (const char* key : {"margin", "covered", "used", "share", "share_by_chance"})
        results.push_back({of + '.' + when + '.' + key,
                           numbers(runs, [when, key](const Json& run) { return number(run[when][key]); })});
    for (const char* key : {"attention", "attention_routed"})
      results.push_back({of + '.' + key + ".p_vv",
                         numbers(runs, [&](const Json& run) { return number(run[key][at(run, o.base.t2)][0][0]); })});
    loss.curves.push_back(curve(of, runs, "test_loss"));
    right.curves.push_back(curve(of, runs, "test_accuracy"));
  }
  write_results(o.common, "mot", o.json(), results, Json::object());
  draw(o.common.out / "variants.svg", {loss, right}, 2);
  print_results(results);
  finish(o.common, o.json(), results);
}

}  // namespace studies::mot
