"""The cases of the tables, and the numbers of the papers.

A row is (name of the case, label, numbers in the paper's tables or nothing). A group is (title, name of the case to
compare with, rows). The programs in examples/studies have the same names and numbers; a test compares them."""

SMOE = ("smoe", "SMoE", (35.55, 44.19))
HEAVY_BALL = ("heavy_ball", "heavy ball, μ 0.7, γ 1", (33.46, 42.33))

# Perplexities on the clean and on the attacked test text: paper 001, tables 1, 5, 6, 7 and 9.
MOMENTUM = [
    ("Rules, a mixture in every layer", "smoe", [
        SMOE,
        HEAVY_BALL,
        ("adam", "Adam first, heavy ball after it", (33.25, 41.11)),
        ("robust", "robust", (34.45, 42.78)),
        ("negative", "negative, μ −0.3", (35.09, 43.62)),
        ("complex", "complex, μ 0.7 exp(i π/8)", (33.34, 41.66)),
        ("nesterov", "Nesterov, μ 0.7", (35.46, 43.97)),
        ("rms_prop", "RmsProp first, heavy ball after it", (34.25, 42.60)),
        ("sharpness_aware", "sharpness-aware, ρ 0.05", (35.05, 43.44)),
        ("learned", "(i) μ and γ learned", (33.87, 42.32)),
        ("learned_gamma", "(ii) γ learned", (33.69, 41.84)),
        ("gamma_of_word", "(iii) γ of each word", (33.96, 42.39)),
        ("time_varying", "time-varying μ", (35.08, 43.97)),
        ("scheduled_restart", "scheduled restart", (35.01, 43.72)),
        ("zero_order_hold", "zero-order hold", (34.00, 42.70))]),
    ("Half the depth", "half_smoe", [
        ("half_smoe", "SMoE", (84.81, 99.29)),
        ("half_heavy_ball", "heavy ball", (86.65, 101.18)),
        ("half_adam", "Adam first", ())]),
    ("Twice the depth", "deep_smoe", [
        ("deep_smoe", "SMoE", (30.33, 37.83)),
        ("deep_heavy_ball", "heavy ball", (29.03, 36.78))]),
    ("Dense mixtures: all experts compute each word", "dense", [
        ("dense", "dense", ()),
        ("dense_heavy_ball", "dense, heavy ball", ())]),
    ("GLaM, a mixture in every other layer", "glam", [
        ("glam", "GLaM", (37.71, 47.61)),
        ("glam_heavy_ball", "heavy ball", (35.29, 43.64)),
        ("glam_adam", "Adam first", (34.32, 42.81))]),
    ("The skeleton of the paper's code", "reference", [
        ("reference", "SMoE", (35.55, 44.19)),
        ("reference_heavy_ball", "heavy ball", (33.46, 42.33)),
        ("reference_adam", "Adam first", (33.25, 41.11))]),
    ("The skeleton and the initial weights of experts of the paper's code", "reference_initial", [
        ("reference_initial", "SMoE", (35.55, 44.19)),
        ("reference_initial_heavy_ball", "heavy ball", (33.46, 42.33)),
        ("reference_initial_adam", "Adam first", (33.25, 41.11))]),
    ("The paper's code: skeleton, initial weights, dropout 0.1, constant learning rate", "code", [
        ("code", "SMoE", (35.55, 44.19)),
        ("code_heavy_ball", "heavy ball", (33.46, 42.33)),
        ("code_adam", "Adam first", (33.25, 41.11))]),
    ("Adam and RmsProp in every layer", "smoe", [
        SMOE,
        ("adam_every_1e-08", "Adam, ε 1e-8", ()),
        ("adam_every_0.1", "Adam, ε 0.1", ()),
        ("rms_prop_every_1e-08", "RmsProp, ε 1e-8", ()),
        ("rms_prop_every_0.1", "RmsProp, ε 0.1", ())]),
    ("Adam in the first layer: ε, at γ = 1", "smoe", [
        SMOE,
        ("adam", "ε 1e-8", (33.25, 41.11)),
        ("adam_epsilon_0.0001", "ε 0.0001", ()),
        ("adam_epsilon_0.01", "ε 0.01", ()),
        ("adam_epsilon_0.1", "ε 0.1", ()),
        ("adam_epsilon_1", "ε 1", ())]),
    ("Adam in the first layer: γ, at ε = 0.1", "smoe", [
        SMOE, ("adam_gamma_0.3", "γ 0.3", ()), ("adam_epsilon_0.1", "γ 1", ()), ("adam_gamma_3", "γ 3", ())]),
    ("Momentum μ, at γ = 1", "smoe", [
        SMOE, ("mu_0.3", "μ 0.3", ()), ("mu_0.5", "μ 0.5", ()), HEAVY_BALL, ("mu_0.9", "μ 0.9", ())]),
    ("Step γ, at μ = 0.7 and μ = 0", "smoe", [
        SMOE, ("gamma_0.3", "γ 0.3", ()), ("gamma_0.6", "γ 0.6", ()), HEAVY_BALL, ("gamma_1.5", "γ 1.5", ()),
        ("plain_gamma_0.3", "γ 0.3, μ 0", ())]),
]
MOMENTUM_LAYERS = ["smoe", "heavy_ball", "adam", "robust", "negative", "complex"]
MOMENTUM_DIRECTIONS = ["smoe", "heavy_ball", "adam"]
MOMENTUM_NORMS = MOMENTUM_DIRECTIONS + ["dense", "dense_heavy_ball"]
# Paper 001, table 12: minutes of training until the perplexity of the validation text is 38. SMoE ends at 33.76 (table
# 1).
MOMENTUM_MINUTES = {"smoe": (85.56,), "heavy_ball": (81.77,), "adam": (84.23,)}
MOMENTUM_LEVEL = 38 / 33.76
MOMENTUM_SPEEDS = [row[:2] for row in MOMENTUM[0][2]] + [("adam_epsilon_0.1", "Adam first, ε = 0.1")]


def three(title, name, plain, similarity, attention):
    return (title, name, [(name, title, plain), (f"{name}_similarity", f"{title}, similarity", similarity),
                          (f"{name}_attention", f"{title}, attention", attention)])


SMOE_500 = ("smoe_500", "SMoE", ())  # trained for 500 steps, as all cases whose names end in _500

# Perplexities of paper 002: tables 1, 6 and 9. Table 9 has only clean text.
GRAPH_OF_TOKENS = [
    three("SMoE", "smoe", (34.84, 43.59), (32.03, 39.92), (32.23, 40.91)),
    ("Similarity that sees the words that follow", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_similarity", "SMoE, similarity", (32.03, 39.92)),
        ("smoe_similarity_ahead", "similarity, not causal", ())]),
    ("Only confident words (proposition 1)", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_similarity", "SMoE, similarity", (32.03, 39.92)),
        ("smoe_similarity_confident", "similarity, confident", ()),
        ("smoe_attention", "SMoE, attention", (32.23, 40.91)),
        ("smoe_attention_confident", "attention, confident", ())]),
    ("Learned metric W_s of the similarity", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_similarity", "SMoE, similarity", (32.03, 39.92)),
        ("smoe_similarity_learned", "similarity, W_s learned", ())]),
    three("GLaM", "glam", (39.10, 49.75), (34.92, 43.72), (36.71, 45.85)),
    three("X-MoE", "x_moe", (34.49, 42.96), (33.06, 41.28), (33.24, 41.73)),
    three("SMoE-dropout", "smoe_dropout", (34.67, 43.09), (33.69, 41.99), (33.91, 42.17)),
    ("Temperature τ of the similarity", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_similarity", "SMoE, similarity", (32.03, 39.92)),
        ("smoe_tau_0.1", "τ 0.1", (34.01,)), ("smoe_tau_2", "τ 2", (32.88,)), ("smoe_tau_root", "τ √D", (33.83,))]),
    ("Temperature τ that changes during training", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_similarity", "SMoE, similarity", (32.03, 39.92)),
        ("smoe_tau_falls", "τ from 10 to 0.01", (34.65, 43.08)),
        ("smoe_tau_rises", "τ from 0.01 to 10", (33.91, 41.67))]),
    ("Width σ of the likelihood", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)), ("smoe_attention", "SMoE, attention", (32.23, 40.91)),
        ("smoe_sigma_0.1", "σ 0.1", (32.67,)), ("smoe_sigma_2", "σ 2", (32.85,)),
        ("smoe_sigma_root", "σ √D", (32.90,))]),
    ("Readings of attention-aware routing", "smoe", [
        ("smoe", "SMoE", (34.84, 43.59)),
        ("smoe_attention", "one head per word, m = H · v O", (32.23, 40.91)),
        ("smoe_attention_v_o", "one head per word, m = v O", ()),
        ("smoe_attention_of_sequence", "one head per sequence, m = v O", ()),
        ("smoe_attention_weights", "one head per word, A instead of the posterior", ()),
        ("smoe_attention_every", "all heads by their posterior, m = v O", ())]),
    ("Readings of attention-aware routing, 500 steps", "smoe_500", [
        SMOE_500,
        ("smoe_attention_500", "one head per word, m = H · v O", ()),
        ("smoe_attention_v_o_500", "one head per word, m = v O", ()),
        ("smoe_attention_of_sequence_500", "one head per sequence, m = v O", ()),
        ("smoe_attention_weights_500", "one head per word, A instead of the posterior", ()),
        ("smoe_attention_every_500", "all heads by their posterior, m = v O", ())]),
    ("Temperature τ of the similarity, 500 steps", "smoe_500", [
        SMOE_500, ("smoe_tau_0.1_500", "τ 0.1", ()), ("smoe_similarity_500", "τ 1", ()),
        ("smoe_tau_root_500", "τ √D", ())]),
    three("K = 1", "k_1", (40.75, 50.21), (39.18, 48.66), (39.35, 48.72)),
    three("K = E/2", "k_half", (34.92, 42.98), (33.81, 42.37), (33.28, 41.45)),
    three("Twice the experts", "e_twice", (33.41, 41.79), (31.62, 39.77), (31.85, 39.65)),
    ("All experts (dense form of eq. (7) and (15)), 500 steps", "dense_500", [
        ("dense_500", "all experts", ()), ("dense_similarity_500", "similarity", ()),
        ("dense_attention_500", "attention", ())]),
]
GRAPH_OF_TOKENS_LAYERS = ["smoe", "smoe_similarity", "smoe_attention", "smoe_similarity_ahead",
                          "smoe_similarity_confident", "smoe_attention_confident", "smoe_tau_root", "k_1",
                          "k_1_similarity", "k_1_attention"]
GRAPH_OF_TOKENS_ON_ITSELF = ["smoe_tau_0.1_500", "smoe_similarity_500", "smoe_tau_root_500"]

# Accuracy in % on the test sentences of SST-2 after fine-tuning: paper 002, table 3.
CLASSIFICATION = [("plain", "SMoE", 70.23), ("similarity", "SMoE, similarity", 71.72),
                  ("attention", "SMoE, attention", 72.41)]

# Gates (name of the case with the plain rule, label) and update rules (end of the name, label). The first gate and the
# first rule are the baselines.
GATES = [("gate_softmax", "softmax"), ("gate_similarity", "similarity"), ("gate_attention", "attention"),
         ("gate_cosine", "cosine (X-MoE)"), ("gate_fixed", "fixed (SMoE-dropout)")]
RULES = [("", "plain"), ("_heavy_ball", "heavy ball"), ("_adam", "Adam first, ε 0.1"), ("_robust", "robust")]

# Top-1 accuracy on ImageNet-1K and ImageNet-C in %, and mCE. The numbers are rows of (clean, corrupted, mCE): paper
# 001, tables 2 and 3 for V-MoE with momentum and for Soft MoE; paper 002, table 2 for V-MoE with other routers.
VISION = [
    ("V-MoE", "vmoe", [
        ("vmoe", "V-MoE", ()),
        ("vmoe_heavy_ball", "V-MoE, heavy ball", ((73.26, 48.11, 65.77), (73.16, 46.98, 67.14))),
        ("vmoe_robust", "V-MoE, robust momentum", ((73.20, 48.82, 64.92), (73.16, 46.98, 67.14))),
        ("vmoe_similarity", "V-MoE, similarity-aware", ((73.21, 50.45), (72.71, 48.72))),
        ("vmoe_attention", "V-MoE, attention-aware", ((73.33, 50.85), (72.71, 48.72)))]),
    ("Soft MoE", "soft", [
        ("soft", "Soft MoE", ()),
        ("soft_heavy_ball", "Soft MoE, heavy ball", ((75.47,), (73.52,)))]),
]

# Paper 000 draws curves and prints no numbers. A row is (name of the case, label). An order is a list of pairs of
# models. The paper finds the first model of a pair better than the second one.
MOT = [("mot", "MoT"), ("ffn_level", "one attention for all experts"), ("attention_absent", "without attention"),
       ("multi_head", "transformer without a gate")]
MOT_ORDER = [("mot", "multi_head"), ("mot", "ffn_level"), ("mot", "attention_absent")]
MOT_VARIANTS = [("mot", "MoT"), ("unmerged", "separate keys, queries and values"),
                ("unmerged_fast", "the same, larger rates in stages I and II"),
                ("embedded_router", "router of embedded tokens")]
MOT_TEXT = [("mot.m2", "mot (M = 2)"), ("mot.m4", "mot (M = 4)"), ("mot.m8", "mot (M = 8)"),
            ("multi_head", "multi_head (no gate)"), ("linear", "linear map of the mean word vector"),
            ("bag_of_words", "linear map of the counts of the 2,000 commonest words")]
MOT_TEXT_ORDER = [("mot.m2", "multi_head"), ("mot.m4", "multi_head"), ("mot.m8", "multi_head")]
MOT_TEXT_OTHERS = [("mot.m4", "mot.m2"), ("mot.m8", "mot.m4"), ("mot.m2", "linear"), ("mot.m4", "linear"),
                   ("mot.m8", "linear"), ("bag_of_words", "multi_head")]
MOT_VISION = [("mot.m1", "mot (M = 1)"), ("mot.m4", "mot (M = 4)"), ("mot.m8", "mot (M = 8)"),
              ("mot_per_patch.m4", "mot_per_patch (M = 4)"), ("mot_per_patch.m8", "mot_per_patch (M = 8)"),
              ("ffn_moe.m4", "ffn_moe (M = 4)"), ("attention_absent.m4", "attention_absent (M = 4)"),
              ("multi_head", "multi_head (no gate)")]
MOT_VISION_ORDER = [("mot.m4", "multi_head"), ("mot.m8", "multi_head"), ("mot.m4", "ffn_moe.m4"),
                    ("mot.m4", "attention_absent.m4")]
MOT_VISION_OTHERS = [("mot_per_patch.m4", "mot.m4"), ("mot_per_patch.m8", "mot.m8"), ("mot.m4", "mot.m1"),
                     ("mot.m8", "mot.m1")]
