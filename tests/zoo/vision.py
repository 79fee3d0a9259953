"""Models of images and sound of Hugging Face transformers, made from configurations at small size."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.zoo.entry import Built, entry
from tests.zoo.language import BATCH, DROPOUT, HEADS, HIDDEN, SEQUENCE, VOCABULARY, WIDE, model, some, tokens

CLASSES = 7


def pictures(size: int, channels: int = 3, seed: int = 1) -> torch.Tensor:
    """Random images ``[batch, channels, size, size]`` in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, channels, size, size, generator=generator, dtype=torch.float64)


def classes() -> torch.Tensor:
    """A class of each image."""
    return torch.randint(0, CLASSES, (BATCH,), generator=torch.Generator().manual_seed(2))


def _classifier(name: str, configuration: type, options: dict[str, Any], size: int) -> Built:
    call = {"pixel_values": pictures(size), "labels": classes()}
    return model(name, configuration, options | {"num_labels": CLASSES}), (), call


@entry(sharded={"batch": 0.8}, without_batch={"*.q_proj.weight.0.0": 0.28, "vit.embeddings.cls_token.2": 0.17})
def vit() -> Built:
    options = {
        "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": 1, "intermediate_size": WIDE,
        "image_size": 12, "patch_size": 4, "hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT,
    }  # fmt: skip
    return _classifier("ViTForImageClassification", transformers.ViTConfig, options, 12)


@entry(without_batch={"convolution.2.0": 0.63})
def swin() -> Built:
    """Two stages of two blocks: windows, shifted windows, merged patches; whole samples are dropped at random."""
    options = {
        "image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [3, 6], "window_size": 2,
        "mlp_ratio": 2.0, "hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT,
        "drop_path_rate": DROPOUT,
    }  # fmt: skip
    return _classifier("SwinForImageClassification", transformers.SwinConfig, options, 16)


@entry(without_batch={"*.weight.0": 0.42, "convolution.2": 0.07})
def convnext() -> Built:
    """Depthwise convolutions; whole samples are dropped at random."""
    options = {
        "patch_size": 2, "num_stages": 2, "hidden_sizes": [6, 10], "depths": [1, 1], "drop_path_rate": DROPOUT,
        "image_size": 16,
    }  # fmt: skip
    return _classifier("ConvNextForImageClassification", transformers.ConvNextConfig, options, 16)


@entry(sharded={"batch": 0.8}, without_batch={"*.position_ids.1": 0.21, "*.k_proj.weight.0.0": 0.21})
def clip() -> Built:
    """Contrastive: the loss couples all samples."""
    tower = {
        "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": 1, "intermediate_size": WIDE,
        "attention_dropout": DROPOUT,
    }  # fmt: skip
    text = tower | {
        "vocab_size": VOCABULARY, "max_position_embeddings": SEQUENCE, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    options = {
        "text_config": text, "vision_config": tower | {"image_size": 12, "patch_size": 4}, "projection_dim": 10,
    }  # fmt: skip
    call = {"input_ids": tokens(), "pixel_values": pictures(12), "return_loss": True}
    return model("CLIPModel", transformers.CLIPConfig, options), (), call


@entry(
    sharded={"batch": 0.7},
    without_batch={"*.k_proj.weight.0.0": 0.14, "kwargs.labels.1": 0.1, "*.conv1.weight.0": 0.1},
)
def whisper() -> Built:
    """Speech to text: convolutions over time, then an encoder and a decoder."""
    options = {
        "vocab_size": VOCABULARY, "num_mel_bins": 9, "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDE,
        "decoder_ffn_dim": WIDE, "max_source_positions": 11, "max_target_positions": SEQUENCE, "dropout": DROPOUT,
        "attention_dropout": DROPOUT, "activation_dropout": DROPOUT, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(BATCH, 9, 22, generator=generator, dtype=torch.float64)
    call = {"input_features": features, "labels": some(tokens(seed=5))}
    return model("WhisperForConditionalGeneration", transformers.WhisperConfig, options), (), call
