#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../support/page.hpp"
#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "cases.hpp"

/// Measures the effect of the router's learning rate. Trains only MoT, with all other options unchanged.
namespace studies::mot {

inline void run_router_rates(const Options& o) {
  Cases cases(o);
  std::vector<std::size_t> of_rates;
  for (const double rate : o.router_rates) {
    Setting s = o.base;
    s.eta_router = rate;
    of_rates.push_back(cases.add(Model::mot, s, ".router" + digits(rate)));
  }
  cases.compute();

  std::vector<Result> results;
  const auto add = [&](const std::string& what, const std::function<double(const Json&)>& f) {
    Curve c;
    for (std::size_t i = 0; i < of_rates.size(); ++i) {
      results.push_back({"router." + digits(o.router_rates[i]) + "." + what, numbers(cases.of(of_rates[i]), f)});
      c.add(o.router_rates[i], results.back().values);
    }
    return c;
  };
  const auto panel = [](const std::string& title, const std::string& y_label, std::vector<Curve> curves) {
    return Lines{
        .title = title, .x_label = "learning rate of the router", .y_label = y_label, .log_x = true, .curves = curves};
  };
  const auto stages = [&](const char* key) {
    std::vector<Curve> curves;
    for (const auto& [at, title] : {std::pair{"t1", "at T1"},
                                    {"end", "at T"},
                                    {"t1_noisy", "at T1, with noise"},
                                    {"end_noisy", "at T, with noise"}}) {
      curves.push_back(
          add(std::string(at) + "." + key, [at = at, key](const Json& run) { return number(run[at][key]); }));
      curves.back().title = title;
    }
    return curves;
  };
  const auto last = [](const char* curve) { return [curve](const Json& run) { return number(run[curve].back()); }; };
  const Curve loss = add("test_loss", last("test_loss")), right = add("test_accuracy", last("test_accuracy"));
  for (const char* key : {"one_label", "one_label_by_chance", "share_by_chance", "score"}) stages(key);
  const std::vector<Panel> panels{panel("Test loss in the end", "loss", {loss}),
                                  panel("Test accuracy in the end", "accuracy", {right}),
                                  panel("Items that go to a specialist of their class", "share", stages("share")),
                                  panel("Experts in use", "experts", stages("used"))};
  Json options = o.json();
  options["router_rates"] = o.router_rates;
  write_results(o.common, "mot", options, results, Json::object());
  draw(o.common.out / "router_rates.svg", panels, 2);
  print_results(results);
  finish(o.common, options, results);
}

}  // namespace studies::mot
