"""Times one layer with onnxruntime's operator com.microsoft.MoE. A MatMul before it computes the logits of the gate."""
import moe
import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def forward(shape):
    items, dim, _, experts, picks = shape
    x, gate, up, down = moe.weights(shape)
    # The operator's weights are transposed: [E, H, D] and [E, D, H].
    initial = {"gate": gate, "up": up.transpose(0, 2, 1), "down": down.transpose(0, 2, 1)}
    nodes = [helper.make_node("MatMul", ["x", "gate"], ["logits"]),
             helper.make_node("MoE", ["x", "logits", "up", "", "down"], ["y"], domain="com.microsoft",
                              activation_type="gelu", k=picks, normalize_routing_weights=1)]
    graph = helper.make_graph(nodes, "moe", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [items, dim])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [items, dim])],
                              [numpy_helper.from_array(numpy.ascontiguousarray(v), k) for k, v in initial.items()])
    model = helper.make_model(graph,
                              opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
                              ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = moe.THREADS
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


if __name__ == "__main__":
    moe.write(onnxruntime.__version__, moe.rows_of("onnxruntime", forward))
