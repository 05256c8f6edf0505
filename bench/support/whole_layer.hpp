#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "peers.hpp"
#include "timing.hpp"

/// Peers that compute a whole layer of SwiGLU experts: ggml in this process, and Python libraries in processes that run
/// in turn with this one.
namespace bench {

/// The sizes of a published layer, without the number of items.
struct LayerSizes {
  std::string name;
  Index dim, hidden, experts, picks;

  /// Returns the number of weights of one expert: gate, up and down.
  Index weights() const { return 3 * dim * hidden; }
};

/// An array of floats in memory that other processes can open by its path.
class SharedFloats {
 public:
  explicit SharedFloats(Index count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(float)), file_(memfd_create("gatefold_bench", MFD_CLOEXEC)) {
    const bool sized = file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes_)) == 0;
    void* const mapped = sized ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0) : MAP_FAILED;
    gatefold::expect(mapped != MAP_FAILED, "bench", "shared memory", "memory", "an error of the system");
    data_ = static_cast<float*>(mapped);
  }
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;
  ~SharedFloats() {
    munmap(data_, bytes_);
    close(file_);
  }

  float* data() const { return data_; }
  std::string path() const { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_); }

 private:
  std::size_t bytes_;
  int file_;
  float* data_;
};

/// The weights of a layer in the layout of other libraries: router [E, D], gate and up [E, H, D], down [E, D, H].
struct PeerWeights {
  SharedFloats memory;
  float *router, *gate, *up, *down;

  explicit PeerWeights(const LayerSizes& s)
      : memory(s.experts * (s.dim + s.weights())),
        router(memory.data()),
        gate(router + s.experts * s.dim),
        up(gate + s.experts * s.dim * s.hidden),
        down(up + s.experts * s.dim * s.hidden) {}
};

/// Items [N, D] that all layers read, and an output [N, D] into which Python processes write.
struct SharedItems {
  Index count, dim;
  SharedFloats memory;

  SharedItems(Index items, Index model_dim) : count(items), dim(model_dim), memory(2 * items * model_dim) {}
  float* x(Index item) const { return memory.data() + item * dim; }
  const float* y() const { return x(count); }
};

/// Batches of `items` items each, which are computed in turn.
struct Batches {
  struct Batch {
    Index first;  // number of the batch's first item
    int copy;     // number of the copy of the layer that computes the batch
  };
  Index items = 0;
  std::vector<Batch> all;
};

/// A layer that is timed, of gatefold or of a peer.
struct WholeLayer {
  std::string name;  // benchmarks report the counter peer_ratio_<name>
  /// Returns the address of the outputs [items, D] of the items from `first` on. The next call overwrites them.
  std::function<const float*(Index items, Index first)> output;
  /// Computes all batches in turn, and returns the seconds.
  std::function<double(const Batches&)> seconds;
};

/// Returns a layer that this process computes: forward(copy, x, count) returns the outputs of `count` items x.
inline WholeLayer in_process(std::string name, const SharedItems& items,
                             std::function<const float*(int copy, const float* x, Index count)> forward) {
  return {std::move(name), [&items, forward](Index count, Index first) { return forward(0, items.x(first), count); },
          [&items, forward](const Batches& batches) {
            const double begin = now();
            for (const auto& [first, copy] : batches.all) forward(copy, items.x(first), batches.items);
            return now() - begin;
          }};
}

namespace peers {

/// Loads the layer of bench/peers/ggml_layer.cpp, if bench/peers/ggml.sh has built it. The environment variable
/// GATEFOLD_PEER_GGML names the library file.
class Ggml {
 public:
  static const Ggml& get() {
    static const Ggml loaded;
    return loaded;
  }
  /// Makes `copies` copies of a layer, whose weights have a type of ggml.
  /// @param variant  f32, bf16, q8_0, q4_0 or mxfp4; with the ending _repacked, ggml reorders the weights (CPU_REPACK)
  /// @return a layer without functions, if the library is absent or does not support the variant
  WholeLayer layer(const std::string& variant, const LayerSizes& s, int threads, int copies, const PeerWeights& w,
                   const SharedItems& items) const {
    const std::string name = "ggml_" + variant, ending = "_repacked";
    const bool repack = variant.ends_with(ending);
    const std::string type = variant.substr(0, variant.size() - (repack ? ending.size() : 0));
    if (!forward_) return {name, {}, {}};
    std::vector<std::shared_ptr<void>> layers;
    for (int i = 0; i < copies; ++i) {
      void* const made =
          make_(s.dim, s.hidden, s.experts, s.picks, type.c_str(), repack, threads, w.router, w.gate, w.up, w.down);
      if (!made) return {name, {}, {}};
      layers.emplace_back(made, free_);
    }
    return in_process(name, items, [layers, forward = forward_](int copy, const float* x, Index count) {
      const float* const y = forward(layers[static_cast<std::size_t>(copy)].get(), x, count);
      gatefold::expect(y != nullptr, "bench", "ggml", "an output", "an error");
      return y;
    });
  }

 private:
  using Make = void*(std::int64_t, std::int64_t, std::int64_t, std::int64_t, const char*, int, int, const float*,
                     const float*, const float*, const float*);
  Ggml() {
    void* const library = open("GATEFOLD_PEER_GGML", {});
    make_ = find<Make>(library, "ggml_layer_make");
    free_ = find<void(void*)>(library, "ggml_layer_free");
    forward_ = find<const float*(void*, const float*, std::int64_t)>(library, "ggml_layer_forward");
  }
  Make* make_;
  void (*free_)(void*);
  const float* (*forward_)(void*, const float*, std::int64_t);
};

/// A process that runs a script of bench/peers/. The script answers each line with one line (see peers/layer.py).
class PythonProcess {
 public:
  explicit PythonProcess(std::vector<std::string> command) {
    int to[2], from[2];
    // O_CLOEXEC: a second process would otherwise hold the pipes of the first one open.
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return;
    std::signal(SIGPIPE, SIG_IGN);  // if the script has ended, a write fails, and answer() returns an empty text
    child_ = fork();
    if (child_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : command) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    requests_ = fdopen(to[1], "w");
    answers_ = fdopen(from[0], "r");
  }
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;
  ~PythonProcess() {
    if (requests_) std::fclose(requests_);  // the script ends at the end of its input
    if (answers_) std::fclose(answers_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }

  /// Returns the next line without its end, or an empty text if the process has ended.
  std::string answer() {
    std::string line;
    for (int c; answers_ && (c = std::fgetc(answers_)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line;
  }
  std::string ask(const std::string& request) {
    std::fputs((request + "\n").c_str(), requests_);
    std::fflush(requests_);
    return answer();
  }

 private:
  pid_t child_ = -1;
  std::FILE *requests_ = nullptr, *answers_ = nullptr;
};

/// Starts a script of bench/peers/ that makes `copies` layers with the given weights.
/// @param name  name of the library: the environment variable GATEFOLD_PEER_<NAME> names the interpreter, and the
///         script is layer_<name>.py
/// @param variant  variant of the layer; the script lists its variants
/// @return a layer without functions, if the variable is absent or the script cannot make the layer
inline WholeLayer python_layer(const std::string& name, const std::string& variant, const LayerSizes& s, int copies,
                               const PeerWeights& w, const SharedItems& items) {
  const std::string label = name + "_" + variant;
  std::string variable = "GATEFOLD_PEER_" + name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  const char* const python = std::getenv(variable.c_str());
  if (!python) return {label, {}, {}};
  std::vector<std::string> command{python, GATEFOLD_BENCH_DIR "/peers/layer_" + name + ".py", variant, w.memory.path(),
                                   items.memory.path()};
  for (const Index size : {s.dim, s.hidden, s.experts, s.picks, items.count, Index(copies)})
    command.push_back(std::to_string(size));
  const auto process = std::make_shared<PythonProcess>(command);
  const std::string state = process->answer();
  if (state != "ready") {
    std::fprintf(stderr, "%s: %s\n", label.c_str(), state.empty() ? "the process ended" : state.c_str());
    return {label, {}, {}};
  }
  return {label,
          [process, &items](Index count, Index first) {
            const std::string done = process->ask("output " + std::to_string(count) + " " + std::to_string(first));
            gatefold::expect(done == "done", "bench", "answer of a Python process", "done", done);
            return items.y();
          },
          [process](const Batches& batches) {
            std::ostringstream request;
            request << "time " << batches.items;
            for (const auto& [first, copy] : batches.all) request << ' ' << first << ',' << copy;
            const std::string seconds = process->ask(request.str());
            gatefold::expect(!seconds.empty(), "bench", "answer of a Python process", "seconds", "the end");
            return std::stod(seconds);
          }};
}

}  // namespace peers

/// Adds an entry that times a layer, and returns its index. The sample is the mean time of a batch. If all batches
/// together are short, the layer first computes them once without timing, as in Rounds::time.
/// @param rest  seconds to wait before a sample, so that threads of other libraries fall asleep
inline std::size_t time_layer(Rounds& rounds, const WholeLayer& layer, const Batches& batches, double rest = 0) {
  const double once = layer.seconds(batches);
  return rounds.measure([=] {
    std::this_thread::sleep_for(std::chrono::duration<double>(rest));
    if (once < 0.1) layer.seconds(batches);
    return layer.seconds(batches) / static_cast<double>(batches.all.size());
  });
}

}  // namespace bench
