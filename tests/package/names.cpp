// A program of a user that declares common words next to `using namespace gatefold;` and uses them. A macro AS_… of
// names.sh chooses whether the words are functions, variables, namespaces or types.
#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>

#define FUNCTION(word) \
  int word(int value) { return value + 1; }
#define VARIABLE(word) int word = 1;
#define NAMESPACE(word) \
  namespace word {      \
  int value = 1;        \
  }
#define TYPE(word) \
  struct word {    \
    int value = 1; \
  };
#define USE_FUNCTION(word) +word(0)
#define USE_VARIABLE(word) +word
#define USE_NAMESPACE(word) +word::value
#define USE_TYPE(word) +word{}.value

// Names that internals of gatefold have or had, and words that many programs use.
// clang-format off
#define WORDS(X) \
  X(named) X(lookup) X(hook) X(fn) X(pack) X(any) X(shape) X(math) X(policy) X(attending) X(mixing) X(initial) \
  X(backend) X(device) X(checkpoint) X(auxiliary) X(in_groups) X(parameter_group) X(address_sanitizer) X(saved) \
  X(carry) X(extra) X(input) X(output) X(loss) X(losses) X(adapt) X(evaluation) X(evaluate) X(expert_count) \
  X(joined) X(transposed) X(detail) X(impl) X(internal) X(util) X(utils) X(helpers) X(common) X(config) X(core) \
  X(avx2) X(avx512) X(sse2) X(neon) X(scalar) X(vector) X(simd) X(count) X(check) X(data) X(rows) X(columns) \
  X(cols) X(tile) X(item) X(items) X(batch) X(batches) X(step) X(steps) X(run) X(load) X(save) X(size) X(model) \
  X(layer) X(layers) X(test) X(train) X(training) X(trainer) X(tensor) X(tensors) X(view) X(views) X(stack) \
  X(chain) X(gate) X(gates) X(expert) X(experts) X(router) X(routing) X(route) X(dispatch) X(combine) X(plan) \
  X(plans) X(params) X(parameters) X(grads) X(gradients) X(weights) X(weight) X(bias) X(seed) X(rng) X(noise) \
  X(dropout) X(norm) X(softmax) X(sigmoid) X(relu) X(gelu) X(attention) X(mask) X(embed) X(embedding) X(tokens) \
  X(token) X(vocabulary) X(encode) X(decode) X(logits) X(labels) X(target) X(targets) X(inputs) X(outputs) \
  X(hidden) X(dim) X(dims) X(rank) X(width) X(height) X(length) X(depth) X(rate) X(schedule) X(epoch) X(epochs) \
  X(state) X(context) X(options) X(settings) X(args) X(name) X(names) X(print) X(log_line) X(parse) X(reader) \
  X(writer) X(path) X(file) X(files) X(text) X(line) X(lines) X(word) X(words) X(table) X(group) X(groups) \
  X(shard) X(shards) X(world) X(peers) X(node) X(mesh) X(gather) X(scatter) X(reduce) X(broadcast) X(sum) X(mean) \
  X(total) X(maximum) X(minimum) X(scale) X(shift) X(dot) X(matmul) X(gemm) X(axpy) X(transpose) X(reshape) \
  X(slice) X(concat) X(split) X(merge) X(sort) X(shuffle) X(sample) X(sampler) X(random_value) X(zeros) X(ones) \
  X(eye) X(identity) X(value) X(values) X(result) X(results) X(error) X(expected) X(actual) X(verify) X(measure) \
  X(timer) X(clock_now) X(bench) X(report) X(cache) X(pool) X(buffer) X(queue) X(worker) X(workers) X(threads) \
  X(executor) X(task) X(tasks) X(engine) X(kernel) X(kernels) X(image) X(images) X(pixel) X(audio) X(video) \
  X(user) X(users) X(score) X(scores) X(price) X(feature) X(features) X(row) X(column) X(cell)

// Names of public functions of gatefold. A program may declare functions with these names, because they are overloads.
#define OVERLOADS(X) \
  X(add) X(copy) X(fill) X(zero) X(set_zero) X(uniform) X(normal) X(forward) X(backward) X(infer) X(freeze) \
  X(validate) X(transfer) X(expect) X(jacobian) X(classifier) X(index)
// clang-format on

#if defined(AS_FUNCTIONS)
#define DECLARE(X) WORDS(X) OVERLOADS(X)
DECLARE(FUNCTION)
#define USE DECLARE(USE_FUNCTION)
#elif defined(AS_VARIABLES)
WORDS(VARIABLE)
#define USE WORDS(USE_VARIABLE)
#elif defined(AS_NAMESPACES)
WORDS(NAMESPACE)
#define USE WORDS(USE_NAMESPACE)
#else
WORDS(TYPE)
#define USE WORDS(USE_TYPE)
#endif

using namespace gatefold;

int main() {
  // Uses the library next to these names.
  Cpu::Context ctx(1);
  const Stack stacked{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Mlp<Gelu>{4, 4}}},
                      1};
  const Trainer run_of{ctx, stacked, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  const int sum_of_words = 0 USE;
  return sum_of_words > 0 && io::SaveOptions{}.max_file_bytes >= 0 ? 0 : 1;
}
