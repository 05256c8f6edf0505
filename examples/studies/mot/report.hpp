#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../support/results.hpp"
#include "cases.hpp"
#include "fit.hpp"

namespace studies::mot {

inline std::size_t at(const Json& run, Index epoch) {
  const Json& epochs = run["epoch"];
  return static_cast<std::size_t>(std::find(epochs.begin(), epochs.end(), Json(epoch)) - epochs.begin());
}

inline double least(const Json& run) {
  double floor = INFINITY;
  for (const Json& loss : run["test_loss"]) floor = std::min(floor, number(loss));
  return floor;
}

/// Fits both models of the loss (Shapes) to a curve of the loss in stage III.
inline Shapes shapes_of(const Json& run, const std::string& curve, Index t2) {
  std::vector<double> t, loss;
  for (std::size_t i = 0; i < run["epoch"].size(); ++i) {
    t.push_back(number(run["epoch"][i]) - static_cast<double>(t2));
    loss.push_back(number(run[curve][i]));
  }
  return shapes(t, loss);
}

/// Computes the results of the study, for one claim of the paper after the other.
class Numbers {
 public:
  Numbers(const Options& o, const Cases& cases, const Questions& q)
      : options_(o), cases_(cases), questions_(q), mot_(cases.of(q.models[0])) {
    models();
    proposition1();
    proposition2();
    theorem1();
    lemma1();
    effect_of_experts();
    lengths_of_stages();
  }
  const std::vector<Result>& all() const { return all_; }

 private:
  using OfRun = std::function<double(const Json&)>;

  void add(const std::string& what, const std::vector<Json>& runs, const OfRun& f) {
    all_.push_back({what, numbers(runs, f)});
  }
  static OfRun last(const std::string& curve) {
    return [curve](const Json& run) { return number(run[curve].back()); };
  }
  static OfRun when(const std::string& snapshot, const char* key) {
    return [=](const Json& run) { return number(run[snapshot][key]); };
  }
  /// Adds, for each run, its last test loss minus the last test loss of the default MoT with the same seed.
  void add_difference(const std::string& what, const std::vector<Json>& runs) {
    std::vector<double> less;
    for (std::size_t i = 0; i < runs.size(); ++i)
      less.push_back(number(runs[i]["test_loss"].back()) - number(mot_[i]["test_loss"].back()));
    all_.push_back({what + ".test_loss_less_default", less});
  }
  std::vector<Json> runs(Model m) const { return cases_.of(questions_.models[static_cast<std::size_t>(m)]); }

  void models() {
    for (const Model m : {Model::mot, Model::attention_absent, Model::ffn_level, Model::multi_head}) {
      const std::vector<Json> of = runs(m);
      for (const char* curve : {"test_accuracy", "test_loss", "noisy_accuracy", "noisy_loss", "train_loss"})
        if (of[0].contains(curve)) add(std::string(name(m)) + '.' + curve, of, last(curve));
    }
    for (const auto& [stage, epoch] : stages())
      for (const char* curve : {"test_accuracy", "test_loss"})
        add(std::string("mot.") + stage + '.' + curve, mot_,
            [curve, t = epoch](const Json& run) { return number(run[curve][at(run, t)]); });
  }

  void proposition1() {
    for (const char* snapshot : {"start", "t1", "end"}) {
      for (const char* number : {"margin", "least_margin", "covered", "score"})
        add(std::string("prop1.") + snapshot + '.' + number, mot_, when(snapshot, number));
      for (const char* routing : {"", "_noisy"})
        for (const char* number : {"used", "share", "share_by_chance", "uneven", "one_label", "one_label_by_chance"}) {
          const std::string at = std::string(snapshot) + routing;
          add("prop1." + at + '.' + number, mot_, when(at, number));
        }
    }
    const double root = std::sqrt(options_.base.start);
    add("prop1.t1.margin_by_root_sigma0", mot_, [root](const Json& run) { return number(run["t1"]["margin"]) / root; });
    add("prop1.kept_from_start", mot_, [](const Json& run) {
      const Json &before = run["start"]["signal"], &after = run["t1"]["signal"];
      double same = 0;
      for (std::size_t i = 0; i < before.size(); ++i) same += before[i] == after[i];
      return same / static_cast<double>(before.size());
    });
  }

  void proposition2() {
    for (const auto& [who, curve] : {std::pair{"specialists", "attention"}, {"routed", "attention_routed"}})
      for (const auto& [stage, epoch] : stages()) {
        const std::string of = std::string("prop2.") + who + '.' + stage;
        const auto map = [c = curve, t = epoch](const Json& run) -> const Json& { return run[c][at(run, t)]; };
        add(of + ".p_vv", mot_, [map](const Json& run) { return number(map(run)[0][0]); });
        add(of + ".p_cv", mot_, [map](const Json& run) { return number(map(run)[1][0]); });
        add(of + ".largest_other", mot_, [map](const Json& run) {
          double largest = 0;
          for (std::size_t a = 0; a < kKinds; ++a)
            for (std::size_t b = 0; b < kKinds; ++b)
              if (a + b > 0) largest = std::max(largest, number(map(run)[a][b]));
          return largest;
        });
      }
  }

  void theorem1() {
    const Index t2 = options_.base.t2;
    for (const Model m : {Model::mot, Model::multi_head})
      for (const auto& [of, curve] : {std::pair{"test", "test_loss"}, {"train", "train_loss"}})
        for (const auto& [law, fit] : {std::pair{"exponential", &Shapes::exponential}, {"power", &Shapes::power}}) {
          const std::string what = std::string("theorem1.") + name(m) + '.' + of + '.' + law;
          const auto fitted = [c = curve, f = fit, t2](const Json& run) { return shapes_of(run, c, t2).*f; };
          add(what + ".slope", runs(m), [fitted](const Json& run) { return fitted(run).slope; });
          add(what + ".r2", runs(m), [fitted](const Json& run) { return fitted(run).r2; });
        }
    for (const char* number : {"own", "other", "center", "used_own", "used_other"})
      add(std::string("theorem1.alignment.") + number, mot_, when("end", number));
  }

  void lemma1() {
    for (std::size_t i = 0; i < options_.noises.size(); ++i)
      for (const auto& [model, group] :
           {std::pair{Model::attention_absent, &questions_.noise_absent}, {Model::mot, &questions_.noise_mot}}) {
        const std::string what = std::string("lemma1.") + name(model) + ".noise_" + digits(options_.noises[i]);
        const std::vector<Json> of = cases_.of((*group)[i]);
        add(what + ".floor", of, least);
        add(what + ".test_loss", of, last("test_loss"));
        add(what + ".test_accuracy", of, last("test_accuracy"));
      }
  }

  void effect_of_experts() {
    for (std::size_t i = 0; i < options_.counts.size(); ++i) {
      const std::string what = "experts." + std::to_string(options_.counts[i]);
      const std::vector<Json> of = cases_.of(questions_.counts[i]);
      add(what + ".test_loss", of, last("test_loss"));
      add(what + ".test_accuracy", of, last("test_accuracy"));
      add_difference(what, of);
      for (const char* number : {"covered", "used", "share"}) add(what + '.' + number, of, when("end", number));
    }
  }

  void lengths_of_stages() {
    for (std::size_t i = 0; i < questions_.grid.size(); ++i)
      for (std::size_t j = 0; j < questions_.grid[i].size(); ++j) {
        const Index t1 = questions_.t1[i], t2 = t1 + questions_.stage2[j];
        const std::string what = "grid.t1_" + std::to_string(t1) + ".t2_" + std::to_string(t2);
        for (const char* curve : {"test_loss", "test_accuracy"})
          add(what + '.' + curve, cases_.of(questions_.grid[i][j]), last(curve));
        add_difference(what, cases_.of(questions_.grid[i][j]));
      }
  }

  std::array<std::pair<const char*, Index>, 2> stages() const {
    return {{{"t1", options_.base.t1}, {"t2", options_.base.t2}}};
  }

  const Options& options_;
  const Cases& cases_;
  const Questions& questions_;
  std::vector<Json> mot_;
  std::vector<Result> all_;
};

}  // namespace studies::mot
