"""Language models of Hugging Face transformers, made from configurations at small size, in training with their loss.

All have a batch of 6 and tokens of primes in number; most have 6 heads of 4 features, grouped-query ones 3 key heads.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from tests import models
from tests.zoo.entry import FLOAT32, Built, entry

BATCH, SEQUENCE, VOCABULARY, HEADS, KEY_HEADS, HIDDEN, WIDE = 6, 7, 29, 6, 3, 24, 18
DROPOUT = 0.1

_SHAPE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": 1, "intermediate_size": WIDE}
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ENCODER = _SHAPE | {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "max_position_embeddings": SEQUENCE + 4,
    "hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT,
}  # fmt: skip
_DECODER = _SHAPE | _TOKENS | {"max_position_embeddings": SEQUENCE, "attention_dropout": DROPOUT}
_GROUPED = _DECODER | {"num_key_value_heads": KEY_HEADS, "head_dim": 4}


def model(name: str, configuration: type, options: dict[str, Any]) -> nn.Module:
    """A model with random weights, in float64 and in training mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = getattr(transformers, name)(configuration(**options))
    return module.to(torch.float64).train()


def tokens(sequence: int = SEQUENCE, seed: int = 1, *, low: int = 3) -> torch.Tensor:
    """Random tokens ``[batch, sequence]``, none of them a special one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, VOCABULARY, (BATCH, sequence), generator=generator)


def some(labels: torch.Tensor) -> torch.Tensor:
    """Labels of which many are ignored, unevenly over the samples."""
    generator = torch.Generator().manual_seed(2)
    return torch.where(torch.rand(labels.shape, generator=generator) < 0.6, labels, -100)


def padding(sequence: int = SEQUENCE) -> torch.Tensor:
    """A mask ``[batch, sequence]`` of tokens: the first two samples are shorter."""
    mask = torch.ones(BATCH, sequence, dtype=torch.int64)
    mask[0, -2:] = 0
    mask[1, -1:] = 0
    return mask


def _causal(name: str, configuration: type, options: dict[str, Any]) -> Built:
    ids = tokens()
    return model(name, configuration, options), (), {"input_ids": ids, "labels": some(ids)}


def _masked(name: str, configuration: type, options: dict[str, Any], **inputs: torch.Tensor) -> Built:
    ids = tokens()
    call = {"input_ids": ids, "attention_mask": padding(), "labels": some(ids)} | inputs
    return model(name, configuration, options), (), call


@entry(
    sharded={"batch": 0.3, "*.mlp.c_fc.weight.1": 0.4},
    without_batch={"*.mlp.c_fc.weight.1": 0.35, "*.attn.c_attn.weight.1.1": 0.14},
    float32=FLOAT32,
)
def gpt2() -> Built:
    return models.gpt2(dropout=DROPOUT, layers=1, batch=BATCH, sequence=SEQUENCE)


@entry(without_batch={"*.position_ids.1": 0.63})
def bert() -> Built:
    return models.bert(dropout=DROPOUT, layers=1, batch=BATCH, sequence=SEQUENCE)


@entry(without_batch={"kwargs.input_ids.1": 0.42, "*.query.weight.0.0": 0.17})
def roberta() -> Built:
    return _masked("RobertaForMaskedLM", transformers.RobertaConfig, _ENCODER)


@entry(without_batch={"*.position_ids.1": 0.42, "*.q_lin.weight.0.0": 0.17})
def distilbert() -> Built:
    options = {
        "vocab_size": VOCABULARY, "pad_token_id": 0, "dim": HIDDEN, "hidden_dim": WIDE, "n_heads": HEADS,
        "n_layers": 1, "max_position_embeddings": SEQUENCE, "dropout": DROPOUT, "attention_dropout": DROPOUT,
    }  # fmt: skip
    return _masked("DistilBertForMaskedLM", transformers.DistilBertConfig, options)


@entry(sharded={"batch": 0.8}, without_batch={"kwargs.input_ids.1": 0.35, "*.query.weight.0.0": 0.21})
def albert() -> Built:
    """Two layers that share all parameters."""
    options = _ENCODER | {"embedding_size": 10, "num_hidden_layers": 2, "classifier_dropout_prob": DROPOUT}
    return _masked("AlbertForMaskedLM", transformers.AlbertConfig, options)


@entry(without_batch={"kwargs.input_ids.1": 0.35, "*.query.weight.0.0": 0.21})
def electra() -> Built:
    return _masked("ElectraForMaskedLM", transformers.ElectraConfig, _ENCODER | {"embedding_size": 10})


@entry(without_batch={"kwargs.input_ids.1": 0.35, "*.query_proj.weight.0.0": 0.21})
def deberta() -> Built:
    """Disentangled attention: relative positions are gathered along the sequence."""
    options = _ENCODER | {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "position_biased_input": False, "max_relative_positions": -1,
    }  # fmt: skip
    return _masked("DebertaV2ForMaskedLM", transformers.DebertaV2Config, options)


@entry(without_batch={"kwargs.input_ids.1": 0.21, "kwargs.labels.1": 0.21, "*.q.weight.0.0": 0.21}, float32=FLOAT32)
def t5() -> Built:
    options = _TOKENS | {
        "d_model": HIDDEN, "d_kv": 4, "num_heads": HEADS, "d_ff": WIDE, "num_layers": 1, "dropout_rate": DROPOUT,
        "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
    }  # fmt: skip
    return _translation("T5ForConditionalGeneration", transformers.T5Config, options)


@entry(without_batch={"kwargs.input_ids.1": 0.21, "kwargs.labels.1": 0.21, "*.k_proj.weight.0.0": 0.21})
def bart() -> Built:
    options = _TOKENS | {
        "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDE, "decoder_ffn_dim": WIDE,
        "max_position_embeddings": SEQUENCE + 2, "dropout": DROPOUT, "attention_dropout": DROPOUT,
        "activation_dropout": DROPOUT, "decoder_start_token_id": 2, "forced_eos_token_id": None,
    }  # fmt: skip
    return _translation("BartForConditionalGeneration", transformers.BartConfig, options)


def _translation(name: str, configuration: type, options: dict[str, Any]) -> Built:
    call = {"input_ids": tokens(9), "attention_mask": padding(9), "labels": some(tokens(seed=5))}
    return model(name, configuration, options), (), call


@entry(without_batch={"kwargs.input_ids.1": 0.35, "*.k_proj.weight.0.0": 0.21}, float32=FLOAT32)
def opt() -> Built:
    options = _SHAPE | _TOKENS | {
        "ffn_dim": WIDE, "max_position_embeddings": SEQUENCE, "dropout": DROPOUT, "attention_dropout": DROPOUT,
        "word_embed_proj_dim": HIDDEN,
    }  # fmt: skip
    del options["intermediate_size"]
    return _causal("OPTForCausalLM", transformers.OPTConfig, options)


@entry(without_batch={"kwargs.input_ids.1": 0.56, "*.q_proj.weight.0.0": 0.05}, float32=FLOAT32)
def llama() -> Built:
    return models.llama(dropout=DROPOUT, layers=1, batch=BATCH, sequence=SEQUENCE)


@entry(without_batch={"kwargs.input_ids.1": 0.56, "*.q_proj.weight.0.0": 0.05}, float32=FLOAT32)
def mistral() -> Built:
    return _causal("MistralForCausalLM", transformers.MistralConfig, _GROUPED | {"sliding_window": 4})


@entry(without_batch={"kwargs.input_ids.1": 0.56, "*.q_proj.weight.0.0": 0.05}, float32=FLOAT32)
def qwen2() -> Built:
    options = {name: value for name, value in _GROUPED.items() if name != "head_dim"}
    return _causal("Qwen2ForCausalLM", transformers.Qwen2Config, options)


@entry(without_batch={"kwargs.input_ids.1": 0.56, "*.q_proj.weight.0.0": 0.05}, float32=FLOAT32)
def qwen3() -> Built:
    return _causal("Qwen3ForCausalLM", transformers.Qwen3Config, _GROUPED)


@entry(without_batch={"kwargs.input_ids.1": 0.56, "*.q_proj.weight.0.0": 0.05}, float32=FLOAT32)
def gemma2() -> Built:
    """Two layers: attention over a window, and over everything; logits with a soft cap."""
    options = _GROUPED | {"num_hidden_layers": 2, "sliding_window": 4, "query_pre_attn_scalar": 4}
    return _causal("Gemma2ForCausalLM", transformers.Gemma2Config, options)


@entry(without_batch={"kwargs.input_ids.1": 0.5, "*.o_proj.weight.1.0": 0.2}, float32=FLOAT32)
def phi3() -> Built:
    """One projection for queries, keys and values of unequal parts."""
    options = {name: value for name, value in _GROUPED.items() if name != "head_dim"}
    options |= {"resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT}
    return _causal("Phi3ForCausalLM", transformers.Phi3Config, options)


@entry(without_batch={"kwargs.input_ids.1": 0.63}, float32=FLOAT32)
def falcon() -> Built:
    """One key head for all queries; attention and perceptron in parallel."""
    options = _SHAPE | _TOKENS | {
        "ffn_hidden_size": WIDE, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False,
        "bias": False, "hidden_dropout": DROPOUT, "attention_dropout": DROPOUT, "max_position_embeddings": SEQUENCE,
    }  # fmt: skip
    del options["intermediate_size"]
    return _causal("FalconForCausalLM", transformers.FalconConfig, options)


@entry(without_batch={"*.A_log.0": 0.49}, random=False, float32=FLOAT32)
def mamba() -> Built:
    """A selective state space, scanned in Python."""
    options = _TOKENS | {
        "hidden_size": 10, "state_size": 4, "num_hidden_layers": 1, "conv_kernel": 3, "expand": 2, "time_step_rank": 3,
    }  # fmt: skip
    return _causal("MambaForCausalLM", transformers.MambaConfig, options)
