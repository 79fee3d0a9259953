"""Ordinary models of PyTorch's own layers, as people write them: small, in float64, in training mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.models import Built

BATCH = 4


def normal(*shape: int) -> Tensor:
    """Inputs of a standard normal distribution."""
    return torch.randn(*shape, dtype=torch.float64)


def tokens(high: int, *shape: int) -> Tensor:
    """Numbers of tokens below ``high``."""
    return torch.randint(high, shape)


class Translator(nn.Module):
    """An encoder-decoder transformer with padding and a causal mask of the target."""

    def __init__(self, *, norm_first: bool, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.transformer = nn.Transformer(
            8, 2, 1, 2, 16, dropout=0.2, batch_first=batch_first, norm_first=norm_first, activation="gelu"
        )
        self.head = nn.Linear(8, 11)
        self.batch_first = batch_first

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padded = source == 0
        before, after = target[:, :-1], target[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1], dtype=torch.float64)
        given, wanted = self.embedding(source), self.embedding(before)
        if not self.batch_first:
            given, wanted = given.transpose(0, 1), wanted.transpose(0, 1)
        hidden = self.transformer(
            given,
            wanted,
            tgt_mask=mask,
            tgt_is_causal=True,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
        )
        if not self.batch_first:
            hidden = hidden.transpose(0, 1)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), after.flatten(), ignore_index=0)


def translator(**options: bool) -> Built:
    source, target = tokens(11, BATCH, 5), tokens(11, BATCH, 4)
    source[:, 0] = target[:, -1] = 1
    source[0, 3:] = 0
    return Translator(**options), (source, target), {}


class Scores(nn.Module):
    """Layers one after another, and the mean square of what they give."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return F.mse_loss(y, torch.ones_like(y))


def scores(*layers: nn.Module, of: Tensor) -> Built:
    return Scores(*layers), (of,), {}


def weight_normed() -> Built:
    first, second = (
        parametrizations.weight_norm(nn.Linear(*size), dim=dim) for size, dim in (((6, 8), 0), ((8, 4), 1))
    )
    return scores(first, nn.Tanh(), second, of=normal(BATCH, 6))


def spectrally_normed() -> Built:
    first, second = (parametrizations.spectral_norm(nn.Linear(*size)) for size in ((6, 8), (8, 4)))
    return scores(first, nn.LeakyReLU(0.1), second, of=normal(BATCH, 6))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: the lowest frequencies times complex weights, beside a convolution."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.complex128) / channels)
        self.beside = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bix,iox->box", spectrum[..., : self.modes], self.weight)
        kept = torch.zeros_like(spectrum)
        kept[..., : self.modes] = low
        return F.gelu(torch.fft.irfft(kept, n=x.shape[-1]) + self.beside(x))


def neural_operator() -> Built:
    return scores(nn.Conv1d(2, 4, 1), Spectral(4, 3), Spectral(4, 3), nn.Conv1d(4, 1, 1), of=normal(BATCH, 2, 8))


class Speech(nn.Module):
    """Convolutions over time, an LSTM in both directions and connectionist temporal classification."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(3, 6, 3, stride=2, padding=1)
        self.lstm = nn.LSTM(6, 4, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor, lengths: Tensor, label_lengths: Tensor) -> Tensor:
        hidden = F.relu(self.convolution(x)).transpose(1, 2)
        scores = self.head(self.lstm(hidden)[0]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, labels, (lengths + 1) // 2, label_lengths)


def speech() -> Built:
    lengths, label_lengths = torch.tensor([12, 10, 12, 8]), torch.tensor([3, 2, 1, 2])
    return Speech(), (normal(BATCH, 3, 12), 1 + tokens(4, BATCH, 3), lengths, label_lengths), {}


class Bags(nn.Module):
    """Bags of tokens beside each other, by mean, sum and maximum, and a bilinear form of two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleDict({mode: nn.EmbeddingBag(11, 6, mode=mode) for mode in ("mean", "sum", "max")})
        self.form = nn.Bilinear(6, 6, 4)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        mean, total, most = (bag(words) for bag in self.bags.values())
        return F.cross_entropy(self.form(mean, total + most), labels)


def bags() -> Built:
    return Bags(), (tokens(11, BATCH, 5), tokens(4, BATCH)), {}


class Weighing(nn.Module):
    """Attention of which the weights are used too, of each head and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True, kdim=6, vdim=6, add_bias_kv=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, memory: Tensor) -> dict[str, Tensor]:
        hidden, heads = self.attention(x, memory, memory, average_attn_weights=False)
        again, mean = self.attention(self.norm(hidden), memory, memory, need_weights=True)
        return {"loss": again.square().mean() - heads.amax(-1).mean() + mean.square().sum(), "weights": mean}


def weighing() -> Built:
    return Weighing(), (normal(BATCH, 5, 8), normal(BATCH, 3, 6)), {}


def group_normed() -> Built:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.Conv2d(8, 6, 3, groups=2),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        nn.ELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(6, 4),
    )
    return scores(*layers, of=normal(BATCH, 3, 6, 6))


class Collected(nn.Module):
    """Parameters in lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(6, 6) / 3 for _ in range(2)])
        self.scales = nn.ParameterDict({"in": torch.randn(6), "out": torch.randn(6)})

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scales["in"]
        for weight in self.weights:
            x = torch.tanh(x @ weight) + x
        return (x * self.scales["out"]).square().mean()


def collected() -> Built:
    return Collected(), (normal(BATCH, 6),), {}


def upsampled() -> Built:
    layers = (
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.PReLU(4),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Upsample(size=(5, 7), mode="nearest"),
        nn.Conv2d(2, 1, 3),
        nn.PixelUnshuffle(1),
    )
    return scores(*layers, of=normal(BATCH, 2, 4, 6))


class Patches(nn.Module):
    """Patches by reshaping and permuting, mixed over places and over channels in turn, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 8)
        self.places, self.channels = nn.Linear(6, 6), nn.Linear(8, 8)
        self.back = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        cut = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        tokens = self.embed(cut)
        tokens = tokens + F.gelu(self.places(tokens.mT)).mT
        tokens = tokens + F.gelu(self.channels(tokens))
        again = self.back(tokens).unflatten(1, (h // 2, w // 2)).unflatten(-1, (2, 2, c))
        return F.l1_loss(again.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w), x)


def patches() -> Built:
    return Patches(), (normal(BATCH, 3, 4, 6),), {}


class Straightened(nn.Module):
    """A spatial transformer: samples the image where a small network says."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(32, 6)
        self.convolution = nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.place(x.flatten(1)).tanh().unflatten(1, (2, 3)), list(x.shape), align_corners=False)
        return self.convolution(F.grid_sample(x, grid, align_corners=False)).square().mean()


def straightened() -> Built:
    return Straightened(), (normal(BATCH, 2, 4, 4),), {}


class Rare(nn.Module):
    """A classifier of many classes of which most are rare."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output, loss = self.head(self.body(x).relu(), labels)
        return {"loss": loss, "scores": output}


def rare() -> Built:
    return Rare(), (normal(BATCH, 4), torch.tensor([1, 9, 3, 11])), {}


MODELS: dict[str, Callable[[], Built]] = {
    "transformer": lambda: translator(norm_first=False, batch_first=True),
    "transformer, norms first": lambda: translator(norm_first=True, batch_first=False),
    "weight norm": weight_normed,
    "spectral norm": spectrally_normed,
    "Fourier neural operator": neural_operator,
    "speech": speech,
    "bags": bags,
    "attention's weights": weighing,
    "group and instance norm": group_normed,
    "lists and dicts of parameters": collected,
    "upsampling": upsampled,
    "patches": patches,
    "a spatial transformer": straightened,
    "adaptive softmax": rare,
}


def made(name: str) -> Built:
    """The model of that name, the same at each call, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, args, kwargs = MODELS[name]()
        return module.double(), args, kwargs
