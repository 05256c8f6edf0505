#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/study.hpp"

namespace {

using namespace studies;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A temporary folder, deleted in the end.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("gatefold_studies_" + std::to_string(getpid()));
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

/// Runs whose results need all digits of a double. Counts the runs that are computed, not read from files.
struct Runs {
  std::atomic<int> computed = 0;
  std::vector<Run> list{};
  explicit Runs(int count) {
    for (int i = 0; i < count; ++i) {
      list.push_back({"run" + std::to_string(i),
                      {{"i", i}},
                      [this, i](const Report& report) {
                        ++computed;
                        report(0.5);
                        return Json{{"root", std::sqrt(i)}, {"float", std::sqrt(float(i))}, {"list", {0.1 * i, 1e300}}};
                      },
                      1.0 + i % 3});
    }
  }
};

}  // namespace

TEST_CASE("compute: threads and stored files change neither results nor order") {
  const Folder folder;
  Runs runs(20);
  Common serial{.threads = 1, .out = folder.path / "serial"}, parallel{.threads = 4, .out = folder.path / "parallel"};
  const std::vector<Json> first = compute(serial, runs.list), second = compute(parallel, runs.list);
  CHECK(runs.computed == 40);
  CHECK(compute(serial, runs.list) == first);
  CHECK(runs.computed == 40);
  REQUIRE(first.size() == 20);
  CHECK(first == second);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i]["root"].get<double>() == std::sqrt(double(i)));
    CHECK(first[i]["float"].get<float>() == std::sqrt(float(i)));
    const std::string file = "runs/run" + std::to_string(i) + ".json";
    CHECK(text_of(serial.out / file) == text_of(parallel.out / file));
  }
}

TEST_CASE("compute: reuses only complete stored runs with the same options") {
  const Folder folder;
  Common common{.threads = 2, .out = folder.path};
  Runs runs(4);
  const std::vector<Json> first = compute(common, runs.list);
  const auto again = [&](int expected) {
    runs.computed = 0;
    CHECK(compute(common, runs.list) == first);
    CHECK(runs.computed == expected);
  };
  const auto file = [&](int i) { return folder.path / "runs" / ("run" + std::to_string(i) + ".json"); };
  const std::string whole = text_of(file(0));
  again(0);
  for (const std::string& damaged :
       {std::string(), whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 2), std::string("null"),
        std::string("[]"), std::string(R"({"options":{"i":0}})"), std::string(R"({"options":{"i":1},"result":{}})"),
        std::string("\xff\0\x01", 3)}) {
    CAPTURE(damaged);
    std::ofstream(file(0)) << damaged;
    again(1);
    CHECK(text_of(file(0)) == whole);
  }
  // Changes a complete file by hand: replaces a number, or removes a part.
  for (const auto& [from, to] : {std::pair{"\"root\":0.0", "\"root\":0.5"}, {"\"root\":0.0,", ""}}) {
    std::string changed = whole;
    REQUIRE(changed.find(from) != std::string::npos);
    std::ofstream(file(0)) << changed.replace(changed.find(from), std::string(from).size(), to);
    again(1);
    CHECK(text_of(file(0)) == whole);
  }
  // Older versions wrote files without a digest.
  std::ofstream(file(0)) << whole.substr(0, whole.find(",\"digest\"")) << "}\n";
  again(0);
  std::filesystem::remove(file(2));
  again(1);
  common.fresh = true;
  again(4);
  common.fresh = false;
  runs.list[1].options = {{"i", 1.0}};
  again(1);
}

TEST_CASE("compute: writes the curves of all runs to log.jsonl") {
  const Folder folder;
  const Json layered{{"curve", {{"step", {10, 20}}, {"valid", {3.5, nullptr}}, {"entropy", {{1, 2}, {0.5, 0.25}}}}}};
  const Json whole{{"epoch", {0, 4}},   {"test_loss", {0.5, 0.25}},          {"share", {{0.75, 0.25}, {1, 0}}},
                   {"end", {{"a", 1}}}, {"attention", {{{1, 0}}, {{0, 1}}}}, {"unequal", {1, 2, 3}}};
  const auto of = [](const Json& result) { return [&result](const Report&) { return result; }; };
  compute({.threads = 1, .out = folder.path}, {{"a.seed5", {{"seed", 5}}, of(layered)},
                                               {"b.m4.seed6", {{"seed", 6}}, of(whole)},
                                               {"no_curves", Json::object(), of(Json(1))}});
  CHECK(text_of(folder.path / "log.jsonl") ==
        R"({"case":"a","seed":5,"step":10,"valid":3.5}
{"case":"a","seed":5,"step":10,"layer":1,"entropy":1}
{"case":"a","seed":5,"step":10,"layer":2,"entropy":2}
{"case":"a","seed":5,"step":20,"layer":1,"entropy":0.5}
{"case":"a","seed":5,"step":20,"layer":2,"entropy":0.25}
{"case":"b.m4","seed":6,"epoch":0,"test_loss":0.5,"share":[0.75,0.25]}
{"case":"b.m4","seed":6,"epoch":4,"test_loss":0.25,"share":[1,0]}
)");
}

TEST_CASE("compute: writes the member log only to log.jsonl and the run's file") {
  const Folder folder;
  const Common common{.threads = 1, .out = folder.path};
  const Json curve{{"epoch", {1, 2}}, {"loss", {0.5, 0.25}}};
  Json logged = curve;
  logged["log"] = {{"norm", {1.5, nullptr}}, {"entropy", {{0.5, 1}, {0.25, 2}}}};
  const auto run = [](const Json& result) {
    return std::vector<Run>{{"a.seed5", {{"seed", 5}}, [&result](const Report&) { return result; }}};
  };
  const auto file = folder.path / "runs/a.seed5.json";
  CHECK(compute(common, run(curve)) == std::vector{curve});
  std::string without = text_of(file);
  std::filesystem::remove(file);
  CHECK(compute(common, run(logged)) == std::vector{curve});
  // The text before the log is equal, including the digest of the result.
  without.erase(without.size() - 2);
  CHECK(text_of(file) == without + R"(,"log":{"norm":[1.5,null],"entropy":[[0.5,1],[0.25,2]]}})" + '\n');
  const std::string log = R"({"case":"a","seed":5,"epoch":1,"loss":0.5,"norm":1.5}
{"case":"a","seed":5,"epoch":1,"layer":1,"entropy":0.5}
{"case":"a","seed":5,"epoch":1,"layer":2,"entropy":1}
{"case":"a","seed":5,"epoch":2,"loss":0.25}
{"case":"a","seed":5,"epoch":2,"layer":1,"entropy":0.25}
{"case":"a","seed":5,"epoch":2,"layer":2,"entropy":2}
)";
  CHECK(text_of(folder.path / "log.jsonl") == log);
  // A stored run gives the same lines.
  std::filesystem::remove(folder.path / "log.jsonl");
  CHECK(compute(common, run(Json())) == std::vector{curve});
  CHECK(text_of(folder.path / "log.jsonl") == log);
}

TEST_CASE("compute: NaN becomes null in new and stored results") {
  const Folder folder;
  const Common common{.threads = 1, .out = folder.path};
  const std::vector<Run> runs{{"nan", Json::object(), [](const Report&) { return Json{{"x", std::nan("")}}; }}};
  const std::vector<Json> first = compute(common, runs);
  CHECK(first[0]["x"].is_null());
  CHECK(compute(common, runs) == first);
}

TEST_CASE("compute: an exception stops all runs and keeps finished results") {
  const Folder folder;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    Common common{.threads = threads, .out = folder.path / std::to_string(threads)};
    std::atomic<int> ended = 0;
    std::atomic<bool> failed = false;
    std::vector<Run> runs;
    runs.push_back({"good", Json::object(), [](const Report&) { return Json(1); }, 9});
    runs.push_back({"bad", Json::object(),
                    [&](const Report&) -> Json {
                      failed = true;
                      throw gatefold::ArgumentError("no such setting");
                    },
                    8});
    for (int i = 0; i < 50; ++i) {
      runs.push_back({"slow" + std::to_string(i), Json::object(), [&](const Report& report) {
                        // This loop ends only when report() throws, after a different run has failed.
                        while (threads > 1) report(0.1);
                        ++ended;
                        return Json(2);
                      }});
    }
    CHECK_THROWS_WITH_AS(compute(common, runs), "no such setting", gatefold::ArgumentError);
    CHECK(failed);
    CHECK(ended == 0);
    CHECK(text_of(common.out / "runs/good.json").starts_with("{\"options\":{},\"result\":1,\"digest\":"));
    CHECK_FALSE(std::filesystem::exists(common.out / "runs/bad.json"));
  }
}

TEST_CASE("compute: throws for duplicate names and invalid file names") {
  const Folder folder;
  const Common common{.out = folder.path};
  const auto computed = [&](std::vector<std::string> names) {
    std::vector<Run> runs;
    for (const std::string& name : names) runs.push_back({name, Json::object(), [](const Report&) { return Json(1); }});
    return compute(common, runs).size();
  };
  CHECK(computed({}) == 0);
  CHECK(computed({"a-b_c.1", "a"}) == 2);
  CHECK_THROWS_AS(computed({"a", "a"}), gatefold::ArgumentError);
  CHECK_THROWS_AS(compute(common, {{"a", Json::object(), [](const Report&) { return Json(1); }, 0}}),
                  gatefold::ArgumentError);
  for (const char* name : {"", "../a", "a/b", "A", ".", "a b"})
    CHECK_THROWS_AS(computed({name}), gatefold::ArgumentError);
}

TEST_CASE("compute: throws before the first run if writing is impossible") {
  const Folder folder;
  std::filesystem::create_directories(folder.path);
  std::ofstream(folder.path / "file") << "keep";
  Runs runs(2);
  for (const char* out : {"file", "file/below"}) {
    CHECK_THROWS_AS(compute({.out = folder.path / out}, runs.list), gatefold::FileError);
  }
  std::filesystem::create_directories(folder.path / "results.json");
  CHECK_THROWS_AS(compute({.out = folder.path}, runs.list), gatefold::FileError);
  CHECK(runs.computed == 0);
  CHECK_THROWS_AS(write_results({.out = folder.path}, "p", {}, {}, {}), gatefold::FileError);
}

TEST_CASE("mean, deviation, agrees: equal results computed by hand") {
  // The numbers 2, 4, 4, 4, 5, 5, 7, 9 have the mean 5. Their squared deviations from the mean add up to 32.
  const std::vector<double> values{2, 4, 4, 4, 5, 5, 7, 9};
  CHECK(mean(values) == 5);
  CHECK(*deviation(values) == doctest::Approx(std::sqrt(32.0 / 7)).epsilon(1e-14));
  CHECK_FALSE(deviation({3}).has_value());
  CHECK(*deviation({1, 1}) == 0);

  // Values 1, 3: std² / n = 2 / 2 = 1. With published_std² / published_runs = 90 / 10 = 9 the bound is 2 sqrt(10) =
  // 6.3246.
  Result r{"x", {1, 3}, 8.3, std::sqrt(90)};
  CHECK(*agrees(r));
  r.published = 8.4;
  CHECK_FALSE(*agrees(r));
  r.published = -4.3;
  CHECK(*agrees(r));
  r.published = -4.4;
  CHECK_FALSE(*agrees(r));
  r.published = 6;
  r.published_runs = 30;  // 2 sqrt(1 + 3) = 4
  CHECK(*agrees(r));
  r.published_std.reset();  // 2 sqrt(1) = 2
  CHECK_FALSE(*agrees(r));
  r.published = 4;
  CHECK(*agrees(r));
  r.values = {std::nan(""), 1};
  CHECK_FALSE(*agrees(r));
  r.values = {4};
  CHECK_FALSE(agrees(r).has_value());
  r.values = {4, 4};
  r.published.reset();
  CHECK_FALSE(agrees(r).has_value());
}

TEST_CASE("Curve: adds the mean, and the deviation of several seeds") {
  Curve two{"", {}, {}}, one{"", {}, {}};
  two.add(4, {1, 3});
  two.add(8, {2, 2});
  CHECK((two.x == std::vector<double>{4, 8} && two.y == std::vector<double>{2, 2}));
  CHECK(two.error == std::vector<double>{std::sqrt(2.0), 0});
  one.add(4, {5});
  CHECK((one.x == std::vector<double>{4} && one.y == std::vector<double>{5} && one.error.empty()));
}

TEST_CASE("numbers, digits, rounded: null becomes NaN; digits prints the shortest form") {
  const std::vector<Json> runs{{{"loss", 0.5}}, {{"loss", nullptr}}, {{"loss", 3}}};
  const std::vector<double> losses = numbers(runs, [](const Json& run) { return number(run["loss"]); });
  REQUIRE(losses.size() == 3);
  CHECK((losses[0] == 0.5 && std::isnan(losses[1]) && losses[2] == 3));
  CHECK_THROWS(number("0.5"));
  CHECK((digits(0.25) == "0.25" && digits(2) == "2" && digits(1e-7) == "1e-07"));
  CHECK((digits(0.7) == "0.7" && digits(0.7000001) == "0.7000001" && digits(1e6) == "1e06"));
  CHECK((rounded(1.23456) == 1.235 && rounded(-0.000123449) == -0.0001234 && rounded(98768) == 98770));
  CHECK((rounded(0) == 0 && std::isnan(rounded(std::nan("")))));
  CHECK((digits(0.0001) == "0.0001" && digits(100000) == "100000" && digits(0.1 + 0.2) == "0.30000000000000004"));
}

TEST_CASE("add_seeds: gives each run a seed in name and options") {
  std::vector<Run> runs;
  const auto make = [](std::uint64_t seed) {
    return Run{{}, {{"seed", seed}, {"m", 4}}, [seed](const Report&) { return Json(seed); }, 2};
  };
  add_seeds(runs, "mlp.m4", 9, 2, make);
  REQUIRE(runs.size() == 2);
  CHECK((runs[0].name == "mlp.m4.seed9" && runs[1].name == "mlp.m4.seed10"));
  CHECK((runs[0].options == Json{{"seed", 9}, {"m", 4}} && runs[1].options["seed"] == 10 && runs[1].cost == 2));
  CHECK(runs[1].compute([](double) {}) == 10);
}

TEST_CASE("write_results: writes results.json and results.csv") {
  const Folder folder;
  const Common common{.out = folder.path};
  const std::vector<Result> all{{"plain", {1, 2}, 1.25, 0.5}, {"a \"b\", c", {0.1}}, {"nan", {std::nan(""), 1}, 3.0}};
  write_results(common, "p", {{"train", 7}}, all, {{"loss", {1, 2}}});
  CHECK(text_of(folder.path / "results.csv") ==
        "name,mean,std,seeds,published,published_std,agrees\n"
        "plain,1.5,0.7071067811865476,2,1.25,0.5,true\n"
        "\"a \"\"b\"\", c\",0.1,,1,,,\n"
        "nan,,,2,3.0,,false\n");
  const Json report = Json::parse(text_of(folder.path / "results.json"));
  CHECK(report["program"] == "p");
  CHECK(report["options"]["train"] == 7);
  CHECK(report["curves"]["loss"] == Json{1, 2});
  REQUIRE(report["results"].size() == 3);
  CHECK(report["results"][0] == Json{{"name", "plain"},
                                     {"mean", 1.5},
                                     {"std", std::sqrt(0.5)},
                                     {"seeds", 2},
                                     {"values", {1, 2}},
                                     {"published", 1.25},
                                     {"published_std", 0.5},
                                     {"agrees", true}});
  CHECK(report["results"][1] ==
        Json{{"name", "a \"b\", c"}, {"mean", 0.1}, {"std", nullptr}, {"seeds", 1}, {"values", Json::array({0.1})}});
}

TEST_CASE("html: escapes texts and encodes bytes") {
  CHECK(html::escaped("a<b> & \"c\" 'd' é") == "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; é");
  CHECK(html::row({"<b>", "1"}) == "<tr><td>&lt;b&gt;</td><td>1</td></tr>\n");
  // The examples of RFC 4648.
  const char* const words[]{"", "f", "fo", "foo", "foob", "fooba", "foobar"};
  const char* const encoded[]{"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (int i = 0; i < 7; ++i) CHECK(html::base64(words[i]) == encoded[i]);
  CHECK(html::base64("\xff\xfe\xfd") == "//79");
}

TEST_CASE("html: inlines SVG with distinct ids, and PNG as bytes") {
  const Folder folder;
  std::filesystem::create_directories(folder.path);
  std::ofstream(folder.path / "a.svg") << "<?xml?>\n<svg><circle id='dot' fill=\"#0072b2\"/><use xlink:href='#dot'/>"
                                          "<g id=\"line\" clip-path=\"url(#dot)\"/></svg>";
  CHECK(html::picture(folder.path / "a.svg") ==
        "<figure><svg><circle id='a_dot' fill=\"#0072b2\"/><use xlink:href='#a_dot'/>"
        "<g id=\"a_line\" clip-path=\"url(#a_dot)\"/></svg></figure>\n");
  std::ofstream(folder.path / "b.png") << "\x89PNG";
  CHECK(html::picture(folder.path / "b.png") ==
        "<figure><img alt=\"b\" src=\"data:image/png;base64,iVBORw==\"></figure>\n");
  std::ofstream(folder.path / "no.svg") << "text";
  for (const char* nothing : {"no.svg", "missing.svg", "missing.png"})
    CHECK(html::picture(folder.path / nothing).empty());
}

TEST_CASE("from_markdown: converts tables, titles and paragraphs") {
  CHECK(
      pages::from_markdown("2 of 3 cases.\n\n**A & B**\n\n| model | Δ |\n|---|---|\n| a<b |  |\n| c | −1 ± 2 |\n\n") ==
      "<p>2 of 3 cases.</p>\n<h3>A &amp; B</h3>\n<div><table>\n<tr><th>model</th><th>Δ</th></tr>\n"
      "<tr><td>a&lt;b</td><td></td></tr>\n<tr><td>c</td><td>−1 ± 2</td></tr>\n</table></div>\n");
  CHECK(pages::from_markdown("").empty());
}

TEST_CASE("last_measurements: means over seeds and layers of the last lines") {
  CHECK(pages::last_measurements("").empty());
  CHECK(pages::last_measurements(R"({"case":"a","seed":1,"step":10,"loss":9}
{"case":"a","seed":1,"step":20,"loss":1,"share":[1,0]}
{"case":"a","seed":1,"step":20,"layer":1,"entropy":1}
{"case":"a","seed":1,"step":20,"layer":2,"entropy":2}
{"case":"a","seed":2,"step":20,"loss":2}
{"case":"a","seed":2,"step":20,"layer":1,"entropy":5}
{"case":"a","seed":2,"step":20,"layer":2,"entropy":6}
{"case":"b","seed":1,"step":30,"loss":null}
)") == "<div><table>\n<tr><th>case</th><th>step</th><th>loss</th><th>entropy</th></tr>\n"
       "<tr><td>a</td><td>20</td><td>1.5</td><td>3.5</td></tr>\n"
       "<tr><td>b</td><td>30</td><td>nan</td><td></td></tr>\n</table></div>\n");
}

TEST_CASE("finish: the page has command, tables, pictures and no reference") {
  const Folder folder;
  const Json result{{"epoch", {1, 2}}, {"loss", {0.5, 0.125}}};
  const auto run = [&](std::vector<const char*> arguments, const std::string& markdown) {
    CLI::App app("Measure a < b");
    const Common common{.out = folder.path / "out"};
    std::vector<std::string> words;
    app.add_option("--words", words);
    arguments.insert(arguments.begin(), "program");
    CHECK(study_main("vision", app, int(arguments.size()), const_cast<char**>(arguments.data()), [&] {
            compute(common, {{"some.case.seed1", {{"seed", 1}}, [&](const Report&) { return result; }}});
            draw(common.out / "lines.svg", {Lines{"title", "x", "y", false, false, {{"c", {1, 2}, {3, 4}}}}}, 1);
            draw(folder.path / "other.svg", {Lines{"elsewhere", "x", "y"}}, 1);
            finish(common, {{"setting", {{"lr", 0.25}}}, {"words", {"a", "b"}}},
                   {{"some.case.loss", {0.125, 0.375}, 0.5, 0.0625}, {"<name>", {3}}}, markdown);
          }) == 0);
    return text_of(folder.path / "out/page.html");
  };
  const std::string page = run({"--words", "it's", "a.b/c", "é"}, "| model |\n|---|\n| of the table |\n");
  for (const char* part :
       {"<title>vision: Measure a &lt; b</title>",
        "<pre>bash examples/run.sh study_vision --words &#39;it&#39;\\&#39;&#39;s&#39; a.b/c &#39;é&#39;</pre>",
        "<td>of the table</td>", "<tr><th></th><th>mean</th><th>std</th><th>seeds</th><th>published</th><th></th></tr>",
        "<tr><td>some.case.loss</td><td>0.25</td><td>± 0.17678</td><td>2</td><td>0.5 ± 0.0625</td><td>agrees</td></tr>",
        "<tr><td>&lt;name&gt;</td><td>3</td><td></td><td>1</td><td></td><td></td></tr>",
        "<tr><td>some.case</td><td>2</td><td>0.125</td></tr>", "<tr><td>setting.lr</td><td>0.25</td></tr>",
        "<tr><td>words</td><td>[&quot;a&quot;,&quot;b&quot;]</td></tr>"}) {
    CAPTURE(part);
    CHECK(page.find(part) != std::string::npos);
  }
  for (const char* absent : {"<script", "@import", "url(http", "src=\"http", "<link", "href=\"http", "elsewhere"}) {
    CAPTURE(absent);
    CHECK(page.find(absent) == std::string::npos);
  }
  const auto pictures = [](const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find("<figure><svg", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  CHECK(pictures(page) == (gnuplot::available() ? 1 : 0));
  // Another study in the same process, without options: no option, picture or table of the first one remains.
  const std::string next = run({}, "");
  CHECK(next.find("<pre>bash examples/run.sh study_vision</pre>") != std::string::npos);
  CHECK(next.find("of the table") == std::string::npos);
  CHECK(pictures(next) == pictures(page));
}

TEST_CASE("study_main: reads options and returns exit codes") {
  const auto exit_code = [](std::vector<const char*> arguments, const std::function<void(const Common&)>& body) {
    CLI::App app("test");
    Common common;
    add_common(app, common);
    arguments.insert(arguments.begin(), "program");
    return study_main("program", app, int(arguments.size()), const_cast<char**>(arguments.data()),
                      [&] { body(common); });
  };
  CHECK(exit_code({"--seeds", "3", "--seed", "9", "--threads", "2", "--quick", "--fresh", "--out", "somewhere"},
                  [](const Common& c) {
                    CHECK(c.seeds == 3);
                    CHECK(c.seed == 9);
                    CHECK(c.threads == 2);
                    CHECK((c.quick && c.fresh));
                    CHECK(c.out == "somewhere");
                  }) == 0);
  const std::filesystem::path program = std::filesystem::canonical("/proc/self/exe");
  CHECK(exit_code(
            {}, [&](const Common& c) { CHECK(c.out == program.parent_path() / "results" / program.filename()); }) == 0);
  CHECK(exit_code({"--quick"}, [&](const Common& c) { CHECK(c.out == default_folder(true)); }) == 0);
  CHECK(default_folder(true) != default_folder(false));
  const auto never = [](const Common&) { FAIL("not reached"); };
  CHECK(exit_code({"--seeds", "0"}, never) == 2);
  CHECK(exit_code({"--seed", "-1"}, never) == 2);
  CHECK(exit_code({"--nonsense"}, never) == 2);
  CHECK(exit_code({"--help"}, never) == 0);
  const auto listed = [](std::vector<const char*> arguments) {
    CLI::App app("test");
    std::vector<double> numbers;
    as_list(app.add_option("--numbers", numbers));
    arguments.insert(arguments.begin(), "program");
    return study_main("program", app, int(arguments.size()), const_cast<char**>(arguments.data()), [] {});
  };
  CHECK(listed({"--numbers", "1,2", "--numbers", "1.5"}) == 0);
  for (const char* twice : {"1,1", "0.7,1,0.70"}) CHECK(listed({"--numbers", twice}) == 2);
  CHECK(exit_code({}, [](const Common&) { throw gatefold::FileError("gone"); }) == 2);
  CHECK(exit_code({}, [](const Common&) { throw gatefold::ArgumentError("wrong"); }) == 2);
  CHECK(exit_code({}, [](const Common&) { throw std::runtime_error("else"); }) == 1);
}

TEST_CASE("above_zero: accepts finite numbers above 0, optionally 0") {
  const auto refused = [](const CLI::Validator& check, std::string text) { return check(text); };
  for (const char* text : {"1", "1e-300", "1e300"})
    CHECK((refused(above_zero(), text).empty() && refused(above_zero(true), text).empty()));
  CHECK(refused(above_zero(true), "0").empty());
  CHECK(refused(above_zero(), "0") == "Value 0 is no number above 0");
  for (const char* text : {"-1", "nan", "inf", "", "x"}) {
    CHECK(refused(above_zero(), text) == "Value " + std::string(text) + " is no number above 0");
    CHECK(refused(above_zero(true), text) == "Value " + std::string(text) + " is no number from 0 on");
  }
}

TEST_CASE("within: rejects NaN and numbers outside the bounds") {
  const auto refused = [](std::string text) { return command_line::within(-1, 0.99)(text); };
  for (const char* text : {"-1", "0", "0.99"}) CHECK(refused(text).empty());
  for (const char* text : {"-1.1", "1", "nan", "-inf", "", "x"})
    CHECK(refused(text) == "Value " + std::string(text) + " is no number from -1 to 0.99");
}

TEST_CASE("pictures::place: shrinks titles that are too long for the panel") {
  const auto font = [](std::size_t characters) {
    const std::string script = pictures::place({0, 0, 1, 1}, std::string(characters, 'x'), "", "", 80, 22, 54, 38);
    const std::size_t at = script.find("center font ',") + 14;
    return std::stod(script.substr(at));
  };
  CHECK(font(0) == 14);
  CHECK(font(40) == 14);
  const double small = font(71);
  CHECK((small > 9 && small < 14));
  CHECK(pictures::text_width(std::string(71, 'x'), small) < 2 * (pictures::kWidth - 289));
}

TEST_CASE("pictures::points: clips error bars to the range, not values") {
  Lines panel{.title = "", .x_label = "", .y_label = "", .least = 0, .most = 100};
  const auto bar = [&](double y, double error) { return pictures::points({"", {1}, {y}, {error}}, panel)[0]; };
  CHECK(bar(96, 6) == pictures::Point{1, 96, 90, 100});
  CHECK(bar(1, 3) == pictures::Point{1, 1, 0, 4});
  CHECK(bar(101, 2) == pictures::Point{1, 101, 99, 101});
  panel = {.title = "", .x_label = "", .y_label = ""};
  CHECK(bar(96, 6) == pictures::Point{1, 96, 90, 102});
}

TEST_CASE("cell_text: adds one digit if the values differ little") {
  CHECK(pictures::cell_text(0.0712, 0.6, 0.5, false) == "0.07");
  CHECK(pictures::cell_text(0.0712, 0.09, 0.03, false) == "0.071");
  CHECK(pictures::cell_text(31.26, 40, 0.5, false) == "31.26");
  CHECK(pictures::cell_text(0, 0, 0, false) == "0.00");
}

TEST_CASE("draw: writes one SVG for any data, none without pictures") {
  const Folder folder;
  std::filesystem::create_directories(folder.path);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  Lines lines{"it's a title", "x_1", "y"};
  lines.curves = {{"few", {4, 8, 16}, {1, nan, 3}, {0.1, 0.2, 0.3}}, {"", {1}, {infinity}}, {"ragged", {1, 2, 3}, {1}}};
  lines.marks = {5};
  Lines logs = lines;
  logs.log_x = logs.log_y = true;
  logs.curves.push_back({"down to nothing", {-1, 0, 1, 2}, {0, -1, 1e-9, 1e9}, {1, 1, 1, 1}});
  Lines long_lines{"long", "x", "y"};
  for (int c = 0; c < 30; ++c) {
    Curve curve{"curve " + std::to_string(c), {}, {}};
    for (int i = 0; i < 50; ++i) {
      curve.x.push_back(i);
      curve.y.push_back(c);
      curve.error.push_back(0.5);
    }
    long_lines.curves.push_back(curve);
  }
  HeatMap map{"map", "class", "expert", {"a", "b'c"}, {"0", "1"}, {{-1, nan}, {0.5}}};
  HeatMap zero{"zero", "", "", {"a"}, {"b"}, {{0}}}, magnitudes{"log", "", "", {"a", "b", "c"}, {"d"}, {{1e-5, 0, 1}}};
  magnitudes.log = true;
  const std::filesystem::path svg = folder.path / "it's a picture.svg";
  draw(svg, {lines, logs, long_lines, Lines{}, map, zero, magnitudes, HeatMap{}}, 3);
  draw(folder.path / "nothing.svg", {}, 3);
  if (gnuplot::available()) {
    const std::string text = text_of(svg);
    CHECK(text.find("width=\"1560\" height=\"1140\"") != std::string::npos);
    CHECK(text.find("b'c") != std::string::npos);
    CHECK(text.find("</svg>") != std::string::npos);
    CHECK_THROWS_AS(draw(folder.path / "nowhere" / "a.svg", {lines}, 1), gatefold::FileError);
  }
  CHECK_FALSE(std::filesystem::exists(folder.path / "nothing.svg"));
}
