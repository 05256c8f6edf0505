#pragma once

#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <vector>

namespace studies {

using namespace gatefold;

namespace functor {

/// Adds the bias of expert e to each of its slots s: x[s] += bias[e].
template <class T, class B>
struct AddOfExpert {
  Groups<B> items;
  View<const T, 2, B> bias;  // [E, L · D]
  View<T, 2, B> x;           // [S, L · D]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    const Index e = items.expert(s);
    if (e < 0) return;
    each_column<T>(lanes, x.extent(1),
                   [&](const auto& at, Index j) { at.store(&x(s, j), at.load(&x(s, j)) + at.load(&bias(e, j))); });
  }
};
/// Computes the mean over the positions of each slot: mean[s] = (1/L) Σ_l x[s·L + l].
template <class T, class B>
struct MeanOfPositions {
  Groups<B> items;
  View<const T, 2, B> x;  // [S · L, D]
  View<T, 2, B> mean;     // [S, D]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    if (items.expert(s) < 0) return;
    const Index length = x.extent(0) / mean.extent(0);
    for (Index j = lanes.lane; j < mean.extent(1); j += lanes.size) {
      T sum = 0;
      for (Index l = 0; l < length; ++l) sum += x(s * length + l, j);
      mean(s, j) = sum / static_cast<T>(length);
    }
  }
};
/// The adjoint of MeanOfPositions: dx[s·L + l] = dmean[s] / L.
template <class T, class B>
struct MeanOfPositionsBackward {
  Groups<B> items;
  View<const T, 2, B> dmean;  // [S, D]
  View<T, 2, B> dx;           // [S · L, D]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    const Index length = dx.extent(0) / dmean.extent(0), s = t / length;
    if (items.expert(s) < 0) return;
    for (Index j = lanes.lane; j < dx.extent(1); j += lanes.size) dx(t, j) = dmean(s, j) / static_cast<T>(length);
  }
};

}  // namespace functor

/// Experts that are small whole transformers, from tokens to outputs, as in the experiments of paper 000 on real data.
///
///     H_0 = X A_e + P_e,   H_b = block_b(H_{b−1}),   z = (1/L) Σ_l LN(H_B)_l C_e + c_e                   (1)
///
/// Source: paper 000, sec. 6, which does not say how the positions become one output. The mean over positions is used
/// instead of a class token, as in Beyer et al. 2022, arXiv:2205.01580.
/// @param x [N, length · token_dim] in items, z [S, outputs] out
/// @param blocks   number of blocks, each a TransformerExpert<Gelu>. Stage II of ThreeStage trains the tensors of the
///   blocks in which a part of the name begins with "attention"
/// @param initial  initial values of all weights except the positions, whose initial values are from N(0, 0.02²)
/// @throws ArgumentError unless all sizes are at least 1 and `heads` divides `model_dim`
/// @cost   blocks · (8·S·L·D² + 4·S·L²·D + 4·S·L·D·H) + 2·S·L·token_dim·D flop
struct WholeTransformer {
  Index token_dim = 0, model_dim = 0, hidden_dim = 0, heads = 1, length = 1, blocks = 1, outputs = 1;
  double epsilon = 1e-5;
  Initial initial{};

  using Block = TransformerExpert<Gelu>;

  template <class T, class B>
  struct Params {
    gatefold::Params<Linear, T, B> embed;
    Tensor<T, 3, B> position;  // [E, L, D]
    std::vector<gatefold::Params<Block, T, B>> blocks;
    gatefold::Params<LayerNorm, T, B> norm;
    gatefold::Params<Linear, T, B> head;
    GATEFOLD_PACK(embed, position, blocks, norm, head)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> embedded;             // [S, L · D]
    std::vector<Tensor<T, 2, B>> stream;  // output of each block, [S, L · D]
    std::vector<gatefold::Saved<Block, T, B>> blocks;
    gatefold::Saved<LayerNorm, T, B> norm;
    Tensor<T, 2, B> mean;  // [S, D]
  };

  Index in_dim() const { return length * token_dim; }
  Index out_dim() const { return outputs; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options("WholeTransformer.init");
    Params<T, B> p{embed().template init<T, B>(ctx, experts, seed.fork(0)),
                   initial_weights<T>(ctx, Initial{Initial::Law::normal, 0.02, initial.shared}, seed.fork(1), experts,
                                      length, model_dim),
                   {},
                   norm().template init<T, B>(ctx, experts, seed.fork(2)),
                   head().template init<T, B>(ctx, experts, seed.fork(3))};
    for (Index b = 0; b < blocks; ++b)
      p.blocks.push_back(block().template init<T, B>(ctx, experts, seed.fork(4 + static_cast<std::uint64_t>(b))));
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("WholeTransformer");
    embed().validate(p.embed, experts);
    expect_shape("WholeTransformer", "params.position", p.position, {experts, length, model_dim});
    expect(static_cast<Index>(p.blocks.size()) == blocks, "WholeTransformer", "params.blocks", blocks, p.blocks.size());
    for (const auto& part : p.blocks) block().validate(part, experts);
    norm().validate(p.norm, experts);
    head().validate(p.head, experts);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> items = groups.in_slot_order(), tokens = position_groups(ctx, Positions<B>{groups, length});
    saved.embedded.resize(groups.slots, length * model_dim);
    saved.stream.resize(static_cast<std::size_t>(blocks));
    saved.blocks.resize(static_cast<std::size_t>(blocks));
    saved.mean.resize(groups.slots, model_dim);

    Nothing<T, B> nothing;
    embed().forward(ctx, p.embed, tokens, x.as(x.extent(0) * length, token_dim),
                    saved.embedded.view().as(tokens.slots, model_dim), nothing);
    B::for_rows(
        ctx, groups.slots,
        functor::AddOfExpert<T, B>{items, p.position.view().as(items.experts(), length * model_dim), saved.embedded});
    for (std::size_t b = 0; b < p.blocks.size(); ++b) {
      saved.stream[b].resize(groups.slots, length * model_dim);
      block().forward(ctx, p.blocks[b], items, before(saved, b), saved.stream[b], saved.blocks[b]);
    }
    auto normed = ctx.template scratch<T>(tokens.slots, model_dim);
    norm().forward(ctx, p.norm, tokens.in_slot_order(), before(saved, p.blocks.size()).as(tokens.slots, model_dim),
                   normed, saved.norm);
    B::for_rows(ctx, groups.slots, functor::MeanOfPositions<T, B>{items, normed, saved.mean});
    head().forward(ctx, p.head, items, saved.mean, z, nothing);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const Groups<B> items = groups.in_slot_order(), tokens = position_groups(ctx, Positions<B>{groups, length});
    auto dmean = ctx.template scratch<T>(groups.slots, model_dim);
    auto d = ctx.template scratch<T>(groups.slots, length * model_dim);  // gradient of the output of a block
    auto dbefore = ctx.template scratch<T>(groups.slots, length * model_dim);
    const auto by_token = [&](const auto& rows) { return rows.as(tokens.slots, model_dim); };

    head().backward(ctx, p.head, items, saved.mean, {}, dz, dmean, grads.head);
    B::for_rows(ctx, tokens.slots, functor::MeanOfPositionsBackward<T, B>{items, dmean, by_token(dbefore)});
    norm().backward(ctx, p.norm, tokens.in_slot_order(), by_token(before(saved, p.blocks.size())), saved.norm,
                    by_token(dbefore), by_token(d), grads.norm);
    for (std::size_t b = p.blocks.size(); b-- > 0; std::swap(d, dbefore))
      block().backward(ctx, p.blocks[b], items, before(saved, b), saved.blocks[b], d, dbefore, grads.blocks[b]);
    B::grouped_sum(ctx, items, View<const T, 2, B>(d), grads.position.view().as(items.experts(), length * model_dim));
    embed().backward(ctx, p.embed, tokens, x.as(x.extent(0) * length, token_dim), {}, by_token(d),
                     dslots.as(tokens.slots, token_dim), grads.embed);
  }

 private:
  Linear embed() const { return {.model_dim = token_dim, .output_dim = model_dim, .initial = initial}; }
  Block block() const {
    return {.model_dim = model_dim,
            .hidden_dim = hidden_dim,
            .heads = heads,
            .length = length,
            .epsilon = epsilon,
            .initial = initial};
  }
  LayerNorm norm() const { return {model_dim, epsilon}; }
  Linear head() const { return {.model_dim = model_dim, .output_dim = outputs, .initial = initial}; }
  /// Returns the input of block b.
  template <class T, class B>
  static View<const T, 2, B> before(const Saved<T, B>& saved, std::size_t b) {
    return b == 0 ? saved.embedded.view() : saved.stream[b - 1].view();
  }
  void expect_options(const char* where) const {
    expect(token_dim >= 1, where, "token_dim", "at least 1", token_dim);
    expect(outputs >= 1, where, "outputs", "at least 1", outputs);
    expect(blocks >= 1, where, "blocks", "at least 1", blocks);
  }
};

}  // namespace studies
