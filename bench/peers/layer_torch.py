"""One layer with torch._grouped_mm, as in the experts of transformers (grouped_mm). Needs PyTorch 2.9 or newer.
Variants: bfloat16, float."""
import layer
import torch

torch.set_num_threads(layer.THREADS)


def make(variant, weights):
    kind = {"bfloat16": torch.bfloat16, "float": torch.float32}[variant]
    router = torch.from_numpy(weights.router.copy())
    gate_up = torch.empty(weights.experts, 2 * weights.hidden, weights.dim, dtype=kind)
    gate_up[:, : weights.hidden] = torch.from_numpy(weights.gate)
    gate_up[:, weights.hidden:] = torch.from_numpy(weights.up)
    down = torch.empty(weights.down.shape, dtype=kind)
    down[:] = torch.from_numpy(weights.down)
    picks, experts = weights.picks, weights.experts

    @torch.no_grad()
    def forward(inputs):
        x, x_float = inputs
        weight, chosen = torch.topk(torch.softmax(x_float @ router.T, dim=-1), picks, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        chosen = chosen.flatten()
        order = torch.argsort(chosen)
        ends = torch.cumsum(torch.bincount(chosen, minlength=experts), 0, dtype=torch.int32)
        gate, up = torch._grouped_mm(x[order // picks], gate_up.transpose(-2, -1), offs=ends).chunk(2, dim=-1)
        z = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(-2, -1), offs=ends)
        z = z * weight.flatten()[order, None].to(z.dtype)
        slots = torch.empty_like(order)
        slots[order] = torch.arange(len(order))
        return z[slots].view(len(x), picks, -1).sum(dim=1)

    def prepare(x):
        x = torch.from_numpy(x.copy())
        return x.to(kind), x

    return prepare, lambda inputs: forward(inputs).float()


if __name__ == "__main__":
    layer.serve(make)
