#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../support/page.hpp"
#include "../support/pictures.hpp"
#include "../support/results.hpp"
#include "cases.hpp"
#include "draw.hpp"
#include "report.hpp"

/// Tests Propositions 1 and 2 of paper 000, by which T₁ and T₂ − T₁ are proportional to the number of experts M. Trains
/// only MoT, with fixed lengths of stages I and II, and with lengths proportional to M. The fixed and the proportional
/// lengths are equal if M is the value of --experts.
namespace studies::mot {

inline void run_growing(const Options& o) {
  Cases cases(o);
  cases.add(Model::mot, o.base);  // so that this case has the name `mot`
  struct Group {
    const char* name;
    std::vector<std::size_t> cases{};  // one for each M
    std::vector<Index> t2{};
  };
  Group fixed{"fixed"}, growing{"growing"};
  for (const Index m : o.growing) {
    Setting s = o.base;
    s.experts = m;
    const std::string count = ".m" + std::to_string(m);
    fixed.cases.push_back(cases.add(Model::mot, s, count));
    fixed.t2.push_back(s.t2);
    s.t1 = o.base.t1 * m / o.base.experts;
    s.t2 = s.t1 + (o.base.t2 - o.base.t1) * m / o.base.experts;
    gatefold::expect(s.t2 <= s.epochs, "--growing", "T₂", gatefold::Joined{"at most T = ", s.epochs}, s.t2);
    growing.cases.push_back(cases.add(Model::mot, s, count + ".growing"));
    growing.t2.push_back(s.t2);
  }
  cases.compute();

  std::vector<Result> results;
  std::vector<Panel> panels;
  // f(run, T₂) returns a number of a run.
  const auto add = [&](const std::string& what, const std::string& title,
                       const std::function<double(const Json&, Index)>& f) {
    Lines lines{.title = title, .x_label = "experts M", .y_label = what, .log_x = true};
    for (const Group* group : {&fixed, &growing}) {
      Curve c{group->name, {}, {}};
      for (std::size_t i = 0; i < o.growing.size(); ++i) {
        results.push_back({std::string(group->name) + ".m" + std::to_string(o.growing[i]) + '.' + what,
                           numbers(cases.of(group->cases[i]), [&](const Json& run) { return f(run, group->t2[i]); })});
        c.add(static_cast<double>(o.growing[i]), results.back().values);
      }
      lines.curves.push_back(c);
    }
    panels.push_back(lines);
  };
  add("margin", "Margin at T1", [](const Json& run, Index) { return number(run["t1"]["margin"]); });
  add("p_vv", "p(v, v) of specialists at T2",
      [](const Json& run, Index t2) { return number(run["attention"][at(run, t2)][0][0]); });
  for (const auto& [key, title] :
       {std::pair{"test_loss", "Test loss in the end"}, {"test_accuracy", "Test accuracy in the end"}})
    add(key, title, [k = key](const Json& run, Index) { return number(run[k].back()); });
  Json options = o.json();
  options["growing"] = o.growing;
  write_results(o.common, "mot", options, results, Json::object());
  draw(o.common.out / "growing.svg", panels, 2);
  print_results(results);
  finish(o.common, options, results);
}

}  // namespace studies::mot
