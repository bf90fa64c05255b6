"""torch.compile as far as inductor's own partition of each layer; the code is not generated.

So which tensors the forward hands to the backward is inductor's decision, made with its defaults.
The tensors are real, and the layers run their graphs. What inductor decides for a CPU otherwise
than for a GPU is told to decide as for a GPU.
"""

import inspect
from functools import cache

import ask_pytorch
import torch
from torch.nn import functional

EAGER_LAYER_NORM = functional.layer_norm


def backend(graph, inputs):
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, inner_compile=interpreted)


def interpreted(graph, inputs, **_):
    """What only runs the graph; its arguments come as a list that it empties."""

    def run(arguments):
        taken = list(arguments)
        arguments.clear()
        return graph.forward(*taken)

    run._boxed_call = True
    return run


def attention(q, k, v, attn_mask=None, **_):
    """As scaled_dot_product_attention: the mask becomes a bias of the queries' dtype."""
    bias = None
    if attn_mask is not None:
        bias = torch.where(attn_mask, 0.0, float("-inf")).to(q.dtype)
    return ask_pytorch.attention_core(q, k, v, bias)[0]


@cache
def install():
    """Inside a graph the stand-ins give way to what inductor takes apart itself."""
    from torch._inductor.decomposition import decompositions

    # Mean and reciprocal deviation stay fp32 on a GPU.
    source = inspect.getsource(torch._refs.native_layer_norm).replace('"cpu", ', "")
    source = source[source.index("def ") :]
    names = dict(vars(torch._refs))
    exec(source, names)
    decompositions[torch.ops.aten.native_layer_norm.default] = names["native_layer_norm"]

    stood = functional.layer_norm, functional.scaled_dot_product_attention
    functional.layer_norm = lambda *args, **words: (
        EAGER_LAYER_NORM if torch.compiler.is_compiling() else stood[0]
    )(*args, **words)
    functional.scaled_dot_product_attention = lambda *args, **words: (
        attention if torch.compiler.is_compiling() else stood[1]
    )(*args, **words)


def compile_layers(layers):
    install()
    torch._dynamo.reset()
    for layer in layers:
        layer.compile(fullgraph=True, backend=backend)
