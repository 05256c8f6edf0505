"""One layer with onnxruntime's operators com.microsoft.MoE and com.microsoft.QMoE. Needs onnxruntime and onnx.
Variants: float; int8 and int4, in blocks of 32 values; int4_int8, which also rounds items to 8 bits."""
import layer
import numpy
import onnxruntime
from onnx import TensorProto, helper

BLOCK = 32


def interleaved(gate, up):
    """Returns [E, 2H, D]: the rows of gate and up in turn."""
    return numpy.stack([gate, up], axis=2).reshape(gate.shape[0], -1, gate.shape[2])


def packed(weights, bits):
    """Returns weights [E, N, K] as unsigned integers, two in a byte if they have 4 bits, and their scales."""
    whole, scale = layer.quantised(weights, bits, BLOCK)
    whole = (whole.astype(numpy.int16) + 2 ** (bits - 1)).astype(numpy.uint8).reshape(weights.shape)
    return (whole if bits == 8 else whole[..., ::2] | whole[..., 1::2] << 4), scale


def make(variant, weights):
    bits = {"float": 32, "int8": 8, "int4": 4, "int4_int8": 4}[variant]
    up, down = [], []
    for e in range(weights.experts):  # one expert at a time needs less memory
        one = slice(e, e + 1)
        rows = interleaved(weights.gate[one], weights.up[one])
        up.append(rows if bits == 32 else packed(rows, bits))
        down.append(weights.down[one] if bits == 32 else packed(weights.down[one], bits))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = layer.THREADS
    names, values, tensors = [], [], []

    def initial(name, array):
        """Adds a weight that the session reads from memory, because a model has at most 2 GB."""
        kind = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8}[str(array.dtype)]
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="memory")
        tensors.append(tensor)
        names.append(name)
        values.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))

    initial("router", numpy.ascontiguousarray(weights.router.T))
    attributes = dict(domain="com.microsoft", k=weights.picks, normalize_routing_weights=1, activation_type="swiglu",
                      swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0)
    if bits == 32:
        initial("up", numpy.concatenate(up))
        initial("down", numpy.concatenate(down))
        node = helper.make_node("MoE", ["x", "logits", "up", "", "down"], ["y"], **attributes)
    else:
        for name, parts in (("up", up), ("down", down)):
            initial(name, numpy.concatenate([whole for whole, _ in parts]))
            initial(name + "_scale", numpy.concatenate([scale for _, scale in parts]))
        node = helper.make_node("QMoE", ["x", "logits", "up", "up_scale", "", "down", "down_scale"], ["y"],
                                expert_weight_bits=bits, block_size=BLOCK,
                                accuracy_level=4 if variant == "int4_int8" else 0, **attributes)
    del up, down
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["items", weights.dim])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "router"], ["logits"]), node], "moe", [value("x")],
                              [value("y")], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options.add_external_initializers(names, values)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return (lambda x: {"x": x.copy()}), (lambda inputs: session.run(None, inputs)[0])


if __name__ == "__main__":
    layer.serve(make)
