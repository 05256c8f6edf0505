#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "../support/results.hpp"
#include "cases.hpp"
#include "fit.hpp"

namespace studies::mot {

/// A number of a run; JSON has none for what diverged.
inline double value(const Json& number) { return number.is_null() ? NAN : number.get<double>(); }

/// One number of every seed.
inline std::vector<double> numbers(const std::vector<Json>& runs, const std::function<double(const Json&)>& f) {
  std::vector<double> all;
  for (const Json& run : runs) all.push_back(f(run));
  return all;
}
/// The place of an epoch among the measured ones.
inline std::size_t at(const Json& run, Index epoch) {
  const Json& epochs = run["epoch"];
  return static_cast<std::size_t>(std::find(epochs.begin(), epochs.end(), Json(epoch)) - epochs.begin());
}

/// The fits of a loss curve in stage III.
inline Shapes shapes_of(const Json& run, const std::string& curve, Index t2) {
  std::vector<double> t, loss;
  for (std::size_t i = 0; i < run["epoch"].size(); ++i) {
    t.push_back(value(run["epoch"][i]) - static_cast<double>(t2));
    loss.push_back(value(run[curve][i]));
  }
  return shapes(t, loss);
}

/// The numbers of the study, claim by claim.
inline std::vector<Result> results_of(const Options& o, const Cases& cases, const Questions& q) {
  const Setting& s = o.base;
  std::vector<Result> all;
  const auto add = [&](const std::string& what, const std::vector<Json>& runs,
                       const std::function<double(const Json&)>& f) {
    all.push_back({what, numbers(runs, f)});
  };
  const auto last = [](const std::string& curve) {
    return [curve](const Json& run) { return value(run[curve].back()); };
  };
  const std::vector<Json> mot = cases.of(q.models[0]);

  for (std::size_t m = 0; m < q.models.size(); ++m) {
    const std::vector<Json> runs = cases.of(q.models[m]);
    const std::string of = name(static_cast<Model>(m));
    for (const char* curve : {"test_accuracy", "test_loss", "noisy_accuracy", "noisy_loss", "train_loss"})
      if (runs[0].contains(curve)) add(of + '.' + curve, runs, last(curve));
  }
  for (const auto& [stage, epoch] : {std::pair{"t1", s.t1}, {"t2", s.t2}})
    for (const char* curve : {"test_accuracy", "test_loss"})
      add(std::string("mot.") + stage + '.' + curve, mot,
          [curve, t = epoch](const Json& run) { return value(run[curve][at(run, t)]); });

  for (const char* when : {"start", "t1", "end"})
    for (const char* number : {"margin", "least_margin", "covered", "used", "share", "uneven", "one_label"})
      add(std::string("prop1.") + when + '.' + number, mot, [=](const Json& run) { return value(run[when][number]); });
  add("prop1.t1.margin_by_root_sigma0", mot,
      [&](const Json& run) { return value(run["t1"]["margin"]) / std::sqrt(s.start); });
  add("prop1.kept_from_start", mot, [&](const Json& run) {
    double same = 0;
    for (std::size_t i = 0; i < run["start"]["signal"].size(); ++i)
      same += run["start"]["signal"][i] == run["t1"]["signal"][i];
    return same / static_cast<double>(run["start"]["signal"].size());
  });

  for (const auto& [who, curve] : {std::pair{"specialists", "attention"}, {"routed", "attention_routed"}})
    for (const auto& [stage, epoch] : {std::pair{"t1", s.t1}, {"t2", s.t2}}) {
      const std::string of = std::string("prop2.") + who + '.' + stage;
      add(of + ".p_vv", mot, [c = curve, t = epoch](const Json& run) { return value(run[c][at(run, t)][0][0]); });
      add(of + ".p_cv", mot, [c = curve, t = epoch](const Json& run) { return value(run[c][at(run, t)][1][0]); });
      add(of + ".largest_other", mot, [c = curve, t = epoch](const Json& run) {
        double largest = 0;
        for (std::size_t a = 0; a < kKinds; ++a)
          for (std::size_t b = 0; b < kKinds; ++b)
            if (a + b > 0) largest = std::max(largest, value(run[c][at(run, t)][a][b]));
        return largest;
      });
    }

  for (const Model m : {Model::mot, Model::multi_head})
    for (const auto& [of, curve] : {std::pair{"test", "test_loss"}, {"train", "train_loss"}}) {
      const std::vector<Json> runs = cases.of(q.models[static_cast<std::size_t>(m)]);
      for (const auto& [law, fit] : {std::pair{"exponential", &Shapes::exponential}, {"power", &Shapes::power}}) {
        const std::string what = std::string("theorem1.") + name(m) + '.' + of + '.' + law;
        add(what + ".slope", runs,
            [&, f = fit, c = curve](const Json& run) { return (shapes_of(run, c, s.t2).*f).slope; });
        add(what + ".r2", runs, [&, f = fit, c = curve](const Json& run) { return (shapes_of(run, c, s.t2).*f).r2; });
      }
    }
  for (const char* number : {"own", "other", "center", "used_own", "used_other"})
    add(std::string("theorem1.alignment.") + number, mot, [=](const Json& run) { return value(run["end"][number]); });

  const auto least = [](const Json& run) {
    double floor = INFINITY;
    for (const Json& loss : run["test_loss"]) floor = std::min(floor, value(loss));
    return floor;
  };
  for (std::size_t i = 0; i < o.noises.size(); ++i)
    for (const auto& [model, group] :
         {std::pair{Model::attention_absent, &q.noise_absent}, {Model::mot, &q.noise_mot}}) {
      const std::string what = std::string("lemma1.") + name(model) + ".noise_" + digits(o.noises[i]);
      add(what + ".floor", cases.of((*group)[i]), least);
      add(what + ".test_loss", cases.of((*group)[i]), last("test_loss"));
      add(what + ".test_accuracy", cases.of((*group)[i]), last("test_accuracy"));
    }
  for (std::size_t i = 0; i < o.counts.size(); ++i) {
    const std::string what = "experts." + std::to_string(o.counts[i]);
    const std::vector<Json> runs = cases.of(q.counts[i]);
    add(what + ".test_loss", runs, last("test_loss"));
    add(what + ".test_accuracy", runs, last("test_accuracy"));
    for (const char* number : {"covered", "used", "share"})
      add(what + '.' + number, runs, [=](const Json& run) { return value(run["end"][number]); });
  }
  for (std::size_t i = 0; i < q.grid.size(); ++i)
    for (std::size_t j = 0; j < q.grid[i].size(); ++j)
      for (const char* curve : {"test_loss", "test_accuracy"})
        add("grid.t1_" + std::to_string(q.t1[i]) + ".t2_" + std::to_string(q.t1[i] + q.stage2[j]) + '.' + curve,
            cases.of(q.grid[i][j]), last(curve));
  return all;
}

}  // namespace studies::mot
