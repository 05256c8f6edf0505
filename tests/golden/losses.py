"""Losses and their gradients: torch.nn's, and the logistic loss as papers 000 and 003 write it."""

import torch
import torch.nn.functional as F

from common import Random

SIZES = {"one": (1, 1), "odd": (7, 3), "more": (12, 5)}  # items, outputs
SCALES = {"": 1, "_large": 40}  # of the outputs


def mean_squared_error(random, y, outputs):
    target = random.uniform(*y.shape)
    return target, F.mse_loss(y, target)


def cross_entropy(random, y, outputs):
    target = random.uniform(len(y), low=0, high=outputs).long()
    return target, F.cross_entropy(y, target)


def cross_entropy_ignored(random, y, outputs):
    """With padding, which the mean leaves out."""
    target, _ = cross_entropy(random, y, outputs)
    target[1::3] = -1
    return target, F.cross_entropy(y, target, ignore_index=-1)


def cross_entropy_smoothed(random, y, outputs):
    """With padding and label smoothing."""
    target, _ = cross_entropy_ignored(random, y, outputs)
    return target, F.cross_entropy(y, target, ignore_index=-1, label_smoothing=0.1)


def soft_cross_entropy(random, y, outputs):
    """With class probabilities."""
    target = random.uniform(*y.shape).softmax(1)
    return target, F.cross_entropy(y, target)


def sigmoid_cross_entropy(random, y, outputs):
    """With labels of 0 and 1 and values between."""
    target = random.uniform(*y.shape, low=-0.5, high=1.5).clamp(0, 1)
    return target, F.binary_cross_entropy_with_logits(y, target)


def logistic(random, y, outputs):
    """l(z) = log(1 + exp(-z)) of z = t y; F.soft_margin_loss, which overflows."""
    target = random.uniform(*y.shape).sign()
    return target, -F.logsigmoid(target * y).mean()


def case(loss, items, outputs, scale):
    random = Random(items)
    y = (scale * random.uniform(items, 1 if loss is logistic else outputs)).requires_grad_()
    target, value = loss(random, y, outputs)
    value.backward()
    return {"y": y, "target": target, "value": value.reshape(1), "dy": y.grad}


def files():
    for loss in (
        mean_squared_error,
        cross_entropy,
        cross_entropy_ignored,
        cross_entropy_smoothed,
        soft_cross_entropy,
        sigmoid_cross_entropy,
        logistic,
    ):
        yield f"loss/{loss.__name__}", {
            size + name: case(loss, *extents, scale)
            for size, extents in SIZES.items()
            for name, scale in SCALES.items()
        }
