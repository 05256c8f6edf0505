#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "../support/page.hpp"
#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "cases.hpp"
#include "draw.hpp"
#include "fit.hpp"

/// Tests Lemma 1 of paper 000: the loss of the model without attention does not fall below a floor. Trains only this
/// model, for many epochs and with each value of the noise.
namespace studies::mot {

/// Returns the fit of log loss = a + slope · log t over the second half of the epochs. The slope is 0 if the loss is at
/// its floor.
inline Fit late_fit(const Json& run, const std::string& curve) {
  std::vector<double> t, loss;
  const double half = number(run["epoch"].back()) / 2;
  for (std::size_t i = 0; i < run["epoch"].size(); ++i) {
    if (number(run["epoch"][i]) < half) continue;
    t.push_back(number(run["epoch"][i]));
    loss.push_back(number(run[curve][i]));
  }
  return shapes(t, loss).power;
}

inline double epoch_of_least(const Json& run) {
  const Json& losses = run["test_loss"];
  const auto least = std::min_element(losses.begin(), losses.end(),
                                      [](const Json& a, const Json& b) { return number(a) < number(b); });
  return number(run["epoch"][static_cast<std::size_t>(std::distance(losses.begin(), least))]);
}

inline void run_floor(const Options& o) {
  Cases cases(o);
  std::vector<std::size_t> of_noises;
  for (const double noise : o.noises) {
    Setting s = o.base;
    s.noise = noise;
    s.epochs = o.floor;
    of_noises.push_back(cases.add(Model::attention_absent, s, ".floor.noise" + digits(noise)));
  }
  cases.compute();

  std::vector<Result> results;
  Json curves = Json::object();
  const auto panel = [](const char* title, const char* x_label, bool log_x) {
    return Lines{.title = title, .x_label = x_label, .y_label = "loss", .log_x = log_x, .log_y = true};
  };
  Lines test = panel("Test loss without attention", "epoch", true),
        train = panel("Training loss without attention", "epoch", true),
        floor = panel("Least test loss, and the last", "noise σ_ξ", false);
  Curve lowest{"least", {}, {}}, last{"last", {}, {}};
  for (std::size_t i = 0; i < of_noises.size(); ++i) {
    const std::vector<Json> runs = cases.of(of_noises[i]);
    const std::string noise = digits(o.noises[i]), what = "floor.noise_" + noise;
    const auto add = [&](const std::string& name, const std::function<double(const Json&)>& f) {
      results.push_back({what + "." + name, numbers(runs, f)});
      return results.back().values;
    };
    lowest.add(o.noises[i], add("least", least));
    last.add(o.noises[i], add("last", [](const Json& run) { return number(run["test_loss"].back()); }));
    add("epoch_of_least", epoch_of_least);
    add("last_accuracy", [](const Json& run) { return number(run["test_accuracy"].back()); });
    add("last_train_loss", [](const Json& run) { return number(run["train_loss"].back()); });
    for (const char* curve : {"test_loss", "train_loss"})
      add(std::string("late_slope.") + curve, [curve](const Json& run) { return late_fit(run, curve).slope; });
    for (auto* lines : {&test, &train})
      lines->curves.push_back(curve("σ_ξ = " + noise, runs, lines == &test ? "test_loss" : "train_loss"));
    curves[what] = {
        {"epoch", runs[0]["epoch"]}, {"test_loss", test.curves.back().y}, {"train_loss", train.curves.back().y}};
  }
  floor.curves = {lowest, last};
  Json options = o.json();
  options["floor"] = o.floor;
  write_results(o.common, "mot", options, results, curves);
  draw(o.common.out / "floor.svg", {test, train, floor}, 2);
  print_results(results);
  finish(o.common, options, results);
}

}  // namespace studies::mot
