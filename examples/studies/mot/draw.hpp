#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../support/pictures.hpp"
#include "cases.hpp"
#include "report.hpp"

namespace studies::mot {

/// Returns the curve of y over epochs, mean ± deviation over the seeds. If `from` is above 0, the curve has only the
/// epochs after `from`, and its x values are the numbers of epochs since `from`.
inline Curve curve(const std::string& title, const std::vector<Json>& runs,
                   const std::function<double(const Json&, std::size_t)>& y, Index from = 0) {
  Curve c{title, {}, {}};
  for (std::size_t i = 0; i < runs[0]["epoch"].size(); ++i) {
    const Index t = runs[0]["epoch"][i];
    if (t < from || (from > 0 && t == from)) continue;
    c.add(static_cast<double>(t - from), numbers(runs, [&](const Json& run) { return y(run, i); }));
  }
  return c;
}
inline Curve curve(const std::string& title, const std::vector<Json>& runs, const std::string& key, Index from = 0) {
  return curve(
      title, runs, [&](const Json& run, std::size_t i) { return number(run[key][i]); }, from);
}
/// Returns a curve of a value after training over a quantity x. values[i] has one value per seed for x[i].
inline Curve over(const std::string& title, const std::vector<double>& x,
                  const std::vector<std::vector<double>>& values) {
  Curve c{title, {}, {}};
  for (std::size_t i = 0; i < values.size(); ++i) c.add(x[i], values[i]);
  return c;
}

inline const char* title(Model model) {
  switch (model) {
    case Model::mot:
      return "MoT";
    case Model::attention_absent:
      return "MoE without attention";
    case Model::ffn_level:
      return "MoE of FFNs, one attention";
    default:
      return "multi-head transformer, no router";
  }
}

/// Draws all pictures of the study into the folder of its results.
class Pictures {
 public:
  Pictures(const Options& o, const Cases& cases, const Questions& q)
      : options_(o), cases_(cases), questions_(q), mot_(cases.of(q.models[0])) {}

  void draw() const {
    models();
    specialisation();
    attention();
    stage3();
    noise();
    experts();
    grid();
  }

 private:
  void put(const char* name, const std::vector<Panel>& panels) const {
    studies::draw(options_.common.out / name, panels, 2);
  }
  std::vector<Json> runs(Model m) const { return cases_.of(questions_.models[static_cast<std::size_t>(m)]); }
  std::vector<double> marks() const {
    return {static_cast<double>(options_.base.t1), static_cast<double>(options_.base.t2)};
  }
  /// Returns f(run) for every run of the cases with the indices `group`, [case][seed].
  std::vector<std::vector<double>> each(const std::vector<std::size_t>& group,
                                        const std::function<double(const Json&)>& f) const {
    std::vector<std::vector<double>> values;
    for (const std::size_t number : group) values.push_back(numbers(cases_.of(number), f));
    return values;
  }
  static double last_accuracy(const Json& run) { return number(run["test_accuracy"].back()); }

  void models() const {
    Lines loss{.title = "Test loss", .x_label = "epoch", .y_label = "loss", .log_y = true, .marks = marks()};
    Lines right{
        .title = "Test accuracy", .x_label = "epoch", .y_label = "accuracy", .marks = marks(), .least = 0, .most = 1};
    for (const Model m : {Model::mot, Model::attention_absent, Model::ffn_level, Model::multi_head}) {
      loss.curves.push_back(curve(title(m), runs(m), "test_loss"));
      right.curves.push_back(curve(title(m), runs(m), "test_accuracy"));
    }
    put("curves.svg", {loss, right});
  }

  /// Draws only the first seed, because the order of the experts differs between seeds and has no mean.
  void specialisation() const {
    const Json& end = mot_[0]["end"];
    std::vector<std::size_t> order;
    for (Index n = 0; n < options_.base.classes; ++n)
      for (std::size_t i = 0; i < end["signal"].size(); ++i)
        if (end["signal"][i] == n) order.push_back(i);
    HeatMap routing, by_label, signals, centers;
    routing.title = "Share of a class by expert, no noise";
    by_label.title = "Share of a class and label, no noise";
    signals.title = "<W_i, v_n>";
    centers.title = "<W_i, c_n>";
    for (HeatMap* map : {&routing, &by_label, &signals, &centers}) {
      map->title += ", in the end (first seed)";
      map->x_label = "expert, by the class that it is specialised in";
      map->y_label = "class";
      for (const std::size_t i : order) map->columns.push_back(std::to_string(i + 1));
    }
    const auto row = [&](HeatMap& map, const std::string& label, const std::function<const Json&(std::size_t)>& at) {
      map.rows.push_back(label);
      map.values.emplace_back();
      for (const std::size_t i : order) map.values.back().push_back(number(at(i)));
    };
    for (std::size_t n = 0; n < static_cast<std::size_t>(options_.base.classes); ++n) {
      const std::string label = std::to_string(n + 1);
      row(routing, label, [&](std::size_t i) -> const Json& { return end["routing"][n][i]; });
      row(signals, label, [&](std::size_t i) -> const Json& { return end["alignment"][i][n]; });
      row(centers, label, [&](std::size_t i) -> const Json& { return end["center_alignment"][i][n]; });
      for (const std::size_t sign : {1, 0})
        row(by_label, label + (sign ? " +" : " −"),
            [&](std::size_t i) -> const Json& { return end["routing_by_label"][2 * n + sign][i]; });
    }
    put("specialisation.svg", {routing, by_label, signals, centers});
  }

  void attention() const {
    std::vector<Panel> panels{attention_curves("Attention of specialists", "attention"),
                              attention_curves("Attention of the experts that items go to", "attention_routed")};
    const Setting& s = options_.base;
    panels.push_back(attention_map("specialists, at T2", "attention", s.t2));
    panels.push_back(attention_map("experts that items go to, at T1", "attention_routed", s.t1));
    panels.push_back(attention_map("experts that items go to, at T2", "attention_routed", s.t2));
    panels.push_back(attention_map("experts that items go to, at T", "attention_routed", s.epochs));
    put("attention.svg", panels);
  }
  static std::vector<std::string> kinds() { return {"v_n", "c_n", "v_n'", "noise"}; }
  Lines attention_curves(const std::string& what, const char* key) const {
    Lines lines{.title = what, .x_label = "epoch", .y_label = "p", .marks = marks()};
    for (std::size_t a = 0; a < kKinds; ++a)
      for (std::size_t b = 0; b < kKinds; ++b)
        if (a == 0 || b == 0)
          lines.curves.push_back(curve(kinds()[a] + " to " + kinds()[b], mot_,
                                       [=](const Json& run, std::size_t i) { return number(run[key][i][a][b]); }));
    return lines;
  }
  HeatMap attention_map(const std::string& of, const char* key, Index epoch) const {
    HeatMap map{
        .title = "p of the " + of, .x_label = "looked at", .y_label = "asks", .columns = kinds(), .rows = kinds()};
    for (std::size_t a = 0; a < kKinds; ++a) {
      map.values.emplace_back();
      for (std::size_t b = 0; b < kKinds; ++b)
        map.values.back().push_back(
            mean(numbers(mot_, [=](const Json& run) { return number(run[key][at(run, epoch)][a][b]); })));
    }
    return map;
  }

  void stage3() const {
    Lines exponential{.title = "Stage III: straight where exponential",
                      .x_label = "epochs after T2",
                      .y_label = "loss",
                      .log_y = true};
    for (const Model m : {Model::mot, Model::multi_head})
      for (const auto& [of, key] : {std::pair{", test", "test_loss"}, {", training", "train_loss"}})
        exponential.curves.push_back(
            curve((m == Model::mot ? "MoT" : "multi-head") + std::string(of), runs(m), key, options_.base.t2));
    Lines power = exponential;
    power.title = "Stage III: straight where a power";
    power.log_x = true;
    put("stage3.svg", {exponential, power});
  }

  void noise() const {
    Lines floor{.title = "Least test loss", .x_label = "noise σ_ξ", .y_label = "loss", .log_y = true};
    Lines right{
        .title = "Test accuracy in the end", .x_label = "noise σ_ξ", .y_label = "accuracy", .least = 0, .most = 1};
    for (const auto& [model, group] :
         {std::pair{Model::mot, &questions_.noise_mot}, {Model::attention_absent, &questions_.noise_absent}}) {
      floor.curves.push_back(over(title(model), options_.noises, each(*group, least)));
      right.curves.push_back(over(title(model), options_.noises, each(*group, last_accuracy)));
    }
    put("noise.svg", {floor, right});
  }

  void experts() const {
    Lines loss{.title = "Test loss by M", .x_label = "epoch", .y_label = "loss", .log_y = true, .marks = marks()};
    const std::vector<double> counts(options_.counts.begin(), options_.counts.end());
    for (std::size_t i = 0; i < counts.size(); ++i)
      loss.curves.push_back(
          curve("M = " + std::to_string(options_.counts[i]), cases_.of(questions_.counts[i]), "test_loss"));
    Lines right{.title = "Test accuracy in the end",
                .x_label = "experts M",
                .y_label = "accuracy",
                .log_x = true,
                .least = 0,
                .most = 1};
    right.curves.push_back(over("", counts, each(questions_.counts, last_accuracy)));
    put("experts.svg", {loss, right});
  }

  void grid() const {
    HeatMap loss, right;
    loss.title = "Test loss in the end";
    right.title = "Test accuracy in the end";
    for (auto [map, key] : {std::pair{&loss, "test_loss"}, {&right, "test_accuracy"}}) {
      map->x_label = "T2 − T1";
      map->y_label = "T1";
      for (const Index t : questions_.stage2) map->columns.push_back(std::to_string(t));
      for (std::size_t i = 0; i < questions_.grid.size(); ++i) {
        map->rows.push_back(std::to_string(questions_.t1[i]));
        map->values.emplace_back();
        for (const auto& values :
             each(questions_.grid[i], [k = key](const Json& run) { return number(run[k].back()); }))
          map->values.back().push_back(mean(values));
      }
    }
    put("grid.svg", {loss, right});
  }

  const Options& options_;
  const Cases& cases_;
  const Questions& questions_;
  std::vector<Json> mot_;
};

}  // namespace studies::mot
