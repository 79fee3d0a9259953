"""The five models: the graph computes what eager autograd does."""

from __future__ import annotations

import functools

import pytest
import torch

import hap
from hap.interpret import bind, run
from hap.trace.fingerprint import fingerprint
from tests import models
from tests.trace.comparison import assert_equal_to_eager

BUILDERS = {
    "gpt2": models.gpt2,
    "bert": models.bert,
    "bert-eager": functools.partial(models.bert, attention="eager"),
    "llama": models.llama,
    "mlp": models.mlp,
    "vgg19": models.vgg19,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_equals_eager_in_float64(name: str) -> None:
    graph = assert_equal_to_eager(BUILDERS[name](), 1e-5 if name == "llama" else 1e-12)
    assert all(o.source for o in graph.operators)
    assert {o.phase for o in graph.operators} == {"forward", "backward"}
    written = [item.tensor for item in graph.inputs] + [i for o in graph.operators for i in o.results if i is not None]
    assert sorted(written) == list(range(len(graph.tensors)))
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)
    assert len({o.name for o in graph.operators}) == len(graph.operators)


@pytest.mark.parametrize("name", ["gpt2", "vgg19"])
def test_a_meta_module_gives_the_same_graph(name: str) -> None:
    module, args, kwargs = BUILDERS[name]()
    graph = hap.trace(module, args, kwargs)
    again = hap.trace(module, args, kwargs)
    assert fingerprint(again) == fingerprint(graph)
    module.to("meta")
    if name == "gpt2":
        module.tie_weights()
    args = tuple(x.to("meta") for x in args)
    kwargs = {key: x.to("meta") for key, x in kwargs.items()}
    assert fingerprint(hap.trace(module, args, kwargs)) == fingerprint(graph)


def test_names_of_tied_embeddings_and_outputs() -> None:
    module, args, kwargs = models.gpt2()
    graph = hap.trace(module, args, kwargs)
    assert graph.tied == {"lm_head.weight": "transformer.wte.weight"}
    assert [(o.kind, o.name) for o in graph.outputs[:2]] == [("loss", "loss"), ("output", "logits")]
    assert [o.name for o in graph.outputs if o.kind == "gradient"] == [n for n, _ in module.named_parameters()]
    assert [i.name for i in graph.inputs if i.kind in ("input", "tangent")] == [
        "kwargs.input_ids", "kwargs.labels", "loss",
    ]  # fmt: skip
    sources = {o.source.split(":")[0] for o in graph.operators if o.module.endswith("attn.c_proj")}
    assert sources == {"modeling_gpt2.py", "pytorch_utils.py"} or sources == {"pytorch_utils.py"}
    assert {o.phase for o in graph.operators if o.module == "transformer.h.1.mlp.c_fc"} == {"forward", "backward"}
    values = [graph.tensors[o.tensor].name for o in graph.outputs[:2]]
    built = graph.output_spec.build(values)
    assert type(built).__name__ == "CausalLMOutputWithCrossAttentions"
    assert built.to_tuple() == tuple(values)


@pytest.mark.parametrize("name", ["gpt2", "bert-eager", "mlp"])
def test_dropout_is_a_function_of_seed_and_step(name: str) -> None:
    module, args, kwargs = BUILDERS[name](dropout=0.4)
    graph = hap.trace(module, args, kwargs)
    assert [item.kind for item in graph.inputs].count("rng") == 1
    assert fingerprint(hap.trace(module, args, kwargs)) == fingerprint(graph)
    runs = [run(graph, bind(graph, module, args, kwargs, rng=rng)) for rng in ((1, 2), (1, 2), (1, 3), (2, 2))]
    losses = [next(value for (kind, _), value in outputs.items() if kind == "loss").item() for outputs in runs]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3
    # In eval mode the module has no dropout, so no random state.
    assert all(item.kind != "rng" for item in hap.trace(module.eval(), args, kwargs).inputs)


def test_autocast_is_captured() -> None:
    module, args, kwargs = models.gpt2(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        graph = assert_equal_to_eager((module, args, kwargs), 2e-2)
    assert any(graph.tensors[i].dtype == torch.bfloat16 for o in graph.operators for i in o.results if i is not None)
    sdpa = [o for o in graph.operators if o.target is torch.ops.hap.sdpa.default]
    assert {graph.tensors[o.operands[0]].dtype for o in sdpa} == {torch.bfloat16}
    assert fingerprint(graph) != fingerprint(hap.trace(module, args, kwargs))
