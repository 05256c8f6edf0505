#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../support/pictures.hpp"
#include "cases.hpp"
#include "report.hpp"

namespace studies::mot {

/// A curve of the mean over seeds with its deviation.
inline Curve curve(const std::string& title, const std::vector<Json>& runs,
                   const std::function<double(const Json&, std::size_t)>& y, Index from = 0) {
  Curve c{title, {}, {}, {}};
  for (std::size_t i = 0; i < runs[0]["epoch"].size(); ++i) {
    const Index t = runs[0]["epoch"][i];
    if (t < from || (from > 0 && t == from)) continue;
    const std::vector<double> values = numbers(runs, [&](const Json& run) { return y(run, i); });
    c.x.push_back(static_cast<double>(t - from));
    c.y.push_back(mean(values));
    if (const auto error = deviation(values)) c.error.push_back(*error);
  }
  return c;
}
inline Curve curve(const std::string& title, const std::vector<Json>& runs, const std::string& key, Index from = 0) {
  return curve(
      title, runs, [&](const Json& run, std::size_t i) { return value(run[key][i]); }, from);
}
/// A curve of the last value over something else than epochs.
inline Curve over(const std::string& title, const std::vector<double>& x,
                  const std::vector<std::vector<double>>& values) {
  Curve c{title, x, {}, {}};
  for (const auto& v : values) {
    c.y.push_back(mean(v));
    if (const auto error = deviation(v)) c.error.push_back(*error);
  }
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

inline void draw_all(const Options& o, const Cases& cases, const Questions& q) {
  const Setting& s = o.base;
  const std::vector<double> marks{static_cast<double>(s.t1), static_cast<double>(s.t2)};
  const auto runs = [&](std::size_t number) { return cases.of(number); };
  const std::vector<Json> mot = runs(q.models[0]);

  Lines loss{.title = "Test loss", .x_label = "epoch", .y_label = "loss", .log_y = true, .marks = marks};
  Lines right{.title = "Test accuracy", .x_label = "epoch", .y_label = "accuracy", .marks = marks};
  for (std::size_t m = 0; m < q.models.size(); ++m) {
    loss.curves.push_back(curve(title(static_cast<Model>(m)), runs(q.models[m]), "test_loss"));
    right.curves.push_back(curve(title(static_cast<Model>(m)), runs(q.models[m]), "test_accuracy"));
  }
  draw(o.common.out / "curves.svg", {loss, right}, 2);

  // Experts in the order of the classes that they are specialised in: one seed, as an order has no mean.
  const Json& end = mot[0]["end"];
  std::vector<std::size_t> order;
  for (Index n = 0; n < s.classes; ++n)
    for (std::size_t i = 0; i < end["signal"].size(); ++i)
      if (end["signal"][i] == n) order.push_back(i);
  HeatMap routing, by_label, signals, centers;
  routing.title = "Share of a class by expert";
  by_label.title = "Share of a class and label by expert";
  signals.title = "<W_i, v_n>";
  centers.title = "<W_i, c_n>";
  for (HeatMap* map : {&routing, &by_label, &signals, &centers}) {
    map->title += ", in the end (first seed)";
    map->x_label = "expert, by the class that it is specialised in";
    map->y_label = "class";
    for (const std::size_t i : order) map->columns.push_back(std::to_string(i));
  }
  const auto row = [&](HeatMap& map, const std::string& title, const std::function<double(std::size_t)>& of_expert) {
    map.rows.push_back(title);
    map.values.emplace_back();
    for (const std::size_t i : order) map.values.back().push_back(of_expert(i));
  };
  for (std::size_t n = 0; n < static_cast<std::size_t>(s.classes); ++n) {
    const std::string label = std::to_string(n + 1);
    row(routing, label, [&](std::size_t i) { return value(end["routing"][n][i]); });
    row(signals, label, [&](std::size_t i) { return value(end["alignment"][i][n]); });
    row(centers, label, [&](std::size_t i) { return value(end["center_alignment"][i][n]); });
    for (const std::size_t sign : {1, 0})
      row(by_label, label + (sign ? " +" : " −"),
          [&](std::size_t i) { return value(end["routing_by_label"][2 * n + sign][i]); });
  }
  draw(o.common.out / "specialisation.svg", {routing, by_label, signals, centers}, 2);

  const std::vector<std::string> kinds{"v_n", "c_n", "v_n'", "noise"};
  Lines grows{.title = "Attention of specialists", .x_label = "epoch", .y_label = "p", .marks = marks};
  Lines grows_routed{
      .title = "Attention of the experts that items go to", .x_label = "epoch", .y_label = "p", .marks = marks};
  for (const auto& [a, b] : {std::pair<std::size_t, std::size_t>{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {2, 0}, {3, 0}})
    for (auto [lines, key] : {std::pair{&grows, "attention"}, {&grows_routed, "attention_routed"}})
      lines->curves.push_back(
          curve(kinds[a] + " to " + kinds[b], mot,
                [a = a, b = b, key = key](const Json& run, std::size_t i) { return value(run[key][i][a][b]); }));
  std::vector<Panel> attention{grows, grows_routed};
  for (const auto& [who, key, when, epoch] : {std::tuple{"specialists", "attention", "T2", s.t2},
                                              {"experts that items go to", "attention_routed", "T1", s.t1},
                                              {"experts that items go to", "attention_routed", "T2", s.t2},
                                              {"experts that items go to", "attention_routed", "T", s.epochs}}) {
    HeatMap map{.title = std::string("p of the ") + who + ", at " + when,
                .x_label = "looked at",
                .y_label = "asks",
                .columns = kinds,
                .rows = kinds};
    for (std::size_t a = 0; a < kKinds; ++a) {
      map.values.emplace_back();
      for (std::size_t b = 0; b < kKinds; ++b)
        map.values.back().push_back(
            mean(numbers(mot, [&, k = key, t = epoch](const Json& run) { return value(run[k][at(run, t)][a][b]); })));
    }
    attention.emplace_back(map);
  }
  draw(o.common.out / "attention.svg", attention, 2);

  Lines exponential{
      .title = "Stage III: straight where exponential", .x_label = "epochs after T2", .y_label = "loss", .log_y = true};
  for (const Model m : {Model::mot, Model::multi_head})
    for (const auto& [of, key] : {std::pair{"test", "test_loss"}, {"training", "train_loss"}})
      exponential.curves.push_back(curve(std::string(m == Model::mot ? "MoT, " : "multi-head, ") + of,
                                         runs(q.models[static_cast<std::size_t>(m)]), key, s.t2));
  Lines power = exponential;
  power.title = "Stage III: straight where a power";
  power.log_x = true;
  draw(o.common.out / "stage3.svg", {exponential, power}, 2);

  const auto last = [&](const std::vector<std::size_t>& group, const std::string& key) {
    std::vector<std::vector<double>> values;
    for (const std::size_t number : group)
      values.push_back(numbers(runs(number), [&](const Json& run) { return value(run[key].back()); }));
    return values;
  };
  Lines floor{.title = "Test loss in the end", .x_label = "noise σ_ξ", .y_label = "loss", .log_y = true};
  Lines noisy{.title = "Test accuracy in the end", .x_label = "noise σ_ξ", .y_label = "accuracy"};
  for (const auto& [model, group] : {std::pair{Model::mot, &q.noise_mot}, {Model::attention_absent, &q.noise_absent}}) {
    floor.curves.push_back(over(title(model), o.noises, last(*group, "test_loss")));
    noisy.curves.push_back(over(title(model), o.noises, last(*group, "test_accuracy")));
  }
  draw(o.common.out / "noise.svg", {floor, noisy}, 2);

  Lines by_count{.title = "Test loss by M", .x_label = "epoch", .y_label = "loss", .log_y = true, .marks = marks};
  std::vector<double> counts(o.counts.begin(), o.counts.end());
  for (std::size_t i = 0; i < o.counts.size(); ++i)
    by_count.curves.push_back(curve("M = " + std::to_string(o.counts[i]), runs(q.counts[i]), "test_loss"));
  Lines of_counts{.title = "Test accuracy in the end",
                  .x_label = "experts M",
                  .y_label = "accuracy",
                  .log_x = true,
                  .curves = {over("", counts, last(q.counts, "test_accuracy"))}};
  draw(o.common.out / "experts.svg", {by_count, of_counts}, 2);

  std::vector<Panel> maps;
  for (const auto& [key, what] :
       {std::pair{"test_loss", "Test loss in the end"}, {"test_accuracy", "Test accuracy in the end"}}) {
    HeatMap map{.title = what, .x_label = "T2 − T1", .y_label = "T1"};
    for (const Index t : q.stage2) map.columns.push_back(std::to_string(t));
    for (std::size_t i = 0; i < q.grid.size(); ++i) {
      map.rows.push_back(std::to_string(q.t1[i]));
      map.values.emplace_back();
      for (const auto& values : last(q.grid[i], key)) map.values.back().push_back(mean(values));
    }
    maps.emplace_back(map);
  }
  draw(o.common.out / "grid.svg", maps, 2);
}

}  // namespace studies::mot
