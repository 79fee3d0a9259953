import torch

from text import batch, standard_library


def test_text_is_the_same_source_code_each_time():
    text = standard_library(50_000)
    assert text.shape == (50_000,)
    assert torch.equal(text, standard_library(50_000))
    assert b"def " in bytes(text.tolist())


def test_batch_holds_tokens_and_their_successors():
    text = standard_library(5_000)
    x, y = batch(text, step=3, size=4, context=16)
    assert x.shape == y.shape == (4, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x, batch(text, step=3, size=4, context=16)[0])
    assert not torch.equal(x, batch(text, step=4, size=4, context=16)[0])
