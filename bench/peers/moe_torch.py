"""Times one layer in PyTorch, written as in transformers: a loop over the experts, index_add for the sum."""
import moe
import torch

torch.set_num_threads(moe.THREADS)


def forward(shape, dtype=torch.float32):
    experts, picks = shape[3], shape[4]
    x, gate, up, down = map(torch.from_numpy, moe.weights(shape))
    x, up, down = (t.to(dtype) for t in (x, up, down))

    @torch.no_grad()
    def layer():
        weight, chosen = torch.topk(torch.softmax(x.float() @ gate, dim=-1), picks, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(dtype)
        y = torch.zeros_like(x)
        for e in range(experts):
            item, pick = torch.where(chosen == e)
            if item.numel():
                hidden = torch.nn.functional.gelu(x[item] @ up[e], approximate="tanh")
                y.index_add_(0, item, (hidden @ down[e]) * weight[item, pick, None])
        return y

    return layer


if __name__ == "__main__":
    halves = lambda shape: (lambda layer: lambda: layer().float())(forward(shape, torch.bfloat16))
    moe.write(torch.__version__, moe.rows_of("torch", forward) +
              moe.rows_of("torch", halves, "layer_bf16/", tolerance=0.1))
