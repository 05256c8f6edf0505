// Runs every gate with every update rule on one batch of Fashion-MNIST patches. Prints the norm of the output, the
// entropy and the load of the routing, and the time relative to SoftmaxTopK + Plain.
//
//   compose [--images 256] [--experts 8] [--k 2] [--layers 3] [--json table.json] …
//
// Exit code 0: done; 2: an option or file is invalid (one line on stderr says which); 1: any other error.

#include <CLI/App.hpp>
#include <cstdio>
#include <gatefold/io/replacement.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "../fashion_mnist/dataset.hpp"
#include "../support/command_line.hpp"
#include "gates.hpp"

namespace {

using namespace compose;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// Reads the first images of the training set. Each image is a sequence of patches.
Batch read_batch(const Options& o, Cpu::Context& ctx) {
  const fashion::Dataset set = fashion::load(o.data, "train", o.patch);
  expect(o.images <= set.count, "compose", "--images", Joined{"at most ", set.count}, o.images);
  const Index dim = o.patch * o.patch, length = fashion::kPixels / dim, items = o.images * length;
  Batch batch{o,
              ctx,
              Tensor<float, 2, Cpu>(items, dim),
              Tensor<Index, 1, Cpu>(items),
              Attention{.model_dim = dim, .heads = o.patch, .causal = false},
              {},
              {}};
  std::copy_n(set.images.data(), items * dim, batch.x.data());
  for (Index n = 0; n < items; ++n) batch.ids(n) = n % length;
  batch.attention_params = init_params<float, Cpu>(batch.attention, ctx, Seed{o.seed}.fork(100));
  Tensor<float, 2, Cpu> u(items, dim);
  batch.attention.forward(ctx, batch.attention_params, batch.x, u, batch.attended, {.length = length});
  return batch;
}

/// Times all rows in turn, o.runs times, so that other load of the machine affects all rows equally.
void time_rows(const Options& o, std::vector<Row>& rows) {
  for (Row& row : rows) row.forward();  // allocates all memory
  for (Index run = 0; run < o.runs; ++run) {
    std::fprintf(stderr, "\rrun %lld of %lld", static_cast<long long>(run + 1), static_cast<long long>(o.runs));
    for (Row& row : rows) {
      const auto begin = std::chrono::steady_clock::now();
      row.forward();
      row.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  std::fprintf(stderr, "\r                    \r");
}

void run(const Options& o) {
  // The file is opened first, so that an error is reported before the table is computed.
  std::optional<io::Replacement> file;
  if (!o.json.empty()) file.emplace(o.json);
  Cpu::Context ctx(o.threads);
  const Batch batch = read_batch(o, ctx);
  std::vector<Row> rows;
  for (AddRows* add : all_gates) add(batch, rows);
  time_rows(o, rows);

  nlohmann::ordered_json json;
  json["items"] = batch.x.extent(0);
  json["model_dim"] = batch.dim();
  json["hidden_dim"] = o.hidden;
  json["experts"] = o.experts;
  json["k"] = o.k;
  json["layers"] = o.layers;
  json["threads"] = ctx.threads();
  std::printf("%lld patches of %lld values, %lld layers, %lld experts, k = %lld; %d threads, median of %lld runs\n",
              static_cast<long long>(batch.x.extent(0)), static_cast<long long>(batch.dim()),
              static_cast<long long>(o.layers), static_cast<long long>(o.experts), static_cast<long long>(o.k),
              ctx.threads(), static_cast<long long>(o.runs));
  std::printf("%-30s %-24s %11s %9s %13s %9s\n", "gate", "update", "output norm", "entropy", "largest load", "time");
  const double one = median(rows[0].seconds);  // SoftmaxTopK + Plain
  for (const Row& row : rows) {
    const Outcome out = row.outcome();
    const double time = median(row.seconds) / one;
    std::printf("%-30s %-24s %11.4g %9.4f %13.3f %9.3f\n", row.gate.c_str(), row.update.c_str(), out.output_norm,
                out.routing_entropy, out.largest_load, time);
    json["rows"].push_back({{"gate", row.gate},
                            {"update", row.update},
                            {"output_norm", out.output_norm},
                            {"routing_entropy", out.routing_entropy},
                            {"largest_load", out.largest_load},
                            {"relative_time", time},
                            {"seconds", median(row.seconds)}});
  }
  if (!file) return;
  const std::string text = json.dump(2) + '\n';
  file->write(text.data(), text.size());
  file->commit();
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Run every gate with every update rule on one batch of Fashion-MNIST patches");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto positive = CLI::Range(Index(1), Index(1) << 20);
  app.add_option("--images", o.images, "images in the batch")->check(positive)->capture_default_str();
  app.add_option("--patch", o.patch, "side of a patch, a divisor of 28")
      ->check(CLI::IsMember({1, 2, 4, 7, 14, 28}))
      ->capture_default_str();
  app.add_option("--experts", o.experts, "experts per layer")->check(positive)->capture_default_str();
  app.add_option("--k", o.k, "experts per patch")->check(positive)->capture_default_str();
  app.add_option("--hidden", o.hidden, "hidden width of an expert")->check(positive)->capture_default_str();
  app.add_option("--layers", o.layers, "residual mixture layers")->check(positive)->capture_default_str();
  app.add_option("--runs", o.runs, "timed runs of each row")->check(positive)->capture_default_str();
  app.add_option("--seed", o.seed, "seed of the parameters and the noise")
      ->check(command_line::seed())
      ->capture_default_str();
  app.add_option("--threads", o.threads, "number of threads (0: one for each processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--data", o.data, "folder of the IDX files, .gz or plain")->capture_default_str();
  app.add_option("--json", o.json, "where to write the table (\"\": nowhere)")->capture_default_str();
  return command_line::run("compose", app, argc, argv, [&] {
    expect(o.k <= o.experts, "compose", "--k", Joined{"at most --experts = ", o.experts}, o.k);
    command_line::limit_memory();
    run(o);
  });
}
