"""Each example, at small size, on devices so slow that even a small model is worth splitting."""

import re

import pytest
import torch
from tests.examples.ranks import run
from tests.runtime.jobs import cluster

from images import ResNet, digits

# A test may start two jobs of 100 seconds each.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    file = tmp_path_factory.mktemp("clusters") / "two.json"
    cluster(2).save(file)
    return "--cluster", file


def output(ranks, script, *arguments):
    printed, failure = run(ranks, script, *arguments)
    assert not failure, failure
    return printed


def losses(printed):
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]


def assert_uneven(printed):
    """Some axis is split, in two unequal parts."""
    shares = [(int(one), int(other)) for one, other in re.findall(r"\[(\d+), (\d+)\]", printed)]
    assert any(one != other and one and other for one, other in shares), printed


def test_huggingface(two):
    printed = output(2, "huggingface.py", "--steps=3", "--accumulate=2", "--batch=3", "--width=32", "--layers=1", *two)
    found = losses(printed)
    assert len(found) == 3
    assert found[-1] < found[0]
    assert_uneven(printed)


def test_finetuning_goes_on_from_what_was_trained(two, tmp_path):
    trained = losses(output(2, "train.py", "--steps=4", "--batch=3", "--export", tmp_path / "pretrained", *two))
    found = losses(
        output(2, "finetune.py", tmp_path / "pretrained", "--steps=3", "--batch=3", "--output", tmp_path / "new", *two)
    )
    assert found[0] < trained[0]
    assert found[-1] < found[0]
    from safetensors.torch import load_file

    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("pretrained", "new"))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert "head.weight" in changed
    assert all(name.startswith(("blocks.1.", "norm.", "head.")) for name in changed)


def test_mixture_of_experts(two):
    printed = output(2, "mixture_of_experts.py", "--steps=3", "--batch=3", "--width=32", "--layers=1", *two)
    found = losses(printed)
    assert len(found) == 3
    assert found[-1] < found[0]
    assert_uneven(printed)


def test_images(two):
    printed = output(2, "images.py", "--epochs=1", "--batch=300", "--channels=8", "--blocks=1", *two)
    assert_uneven(printed)
    # The same in plain PyTorch.
    torch.manual_seed(0)
    images, labels = digits()
    model = ResNet(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for chosen in torch.randperm(1500, generator=torch.Generator().manual_seed(0)).split(300):
        loss = model(images[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses(printed) == pytest.approx([loss.item()], abs=1e-2)


def test_resuming_on_another_cluster(two, tmp_path):
    options = ("--batch=3", "--save-every=2")
    cluster(1).save(tmp_path / "one.json")
    one = ("--cluster", tmp_path / "one.json")
    first = losses(output(1, "resume.py", tmp_path / "run", "--steps=2", *options, *one))
    printed = output(2, "resume.py", tmp_path / "run", "--steps=4", *options, *two)
    assert "goes on from step 2" in printed
    assert len(first) == 2
    assert losses(printed)[-1] < min(first)


def test_comparing_clusters():
    printed = output(
        1, "compare_clusters.py", "V100:2=6.40", "P100=1.5", "--batch=2", "--context=8", "--width=24", "--layers=1"
    )
    _, table = printed.split("\n\n")
    heading, *rows = table.splitlines()
    assert heading.split()[:2] == ["cluster", "s/step"]
    assert [row.split()[0] for row in rows] == ["V100:2", "P100"]
    for row in rows:
        _, speed, _, price, cost = (float(text.strip("%").replace(",", "")) for text in row.split()[1:])
        assert speed > 0
        assert cost == pytest.approx(price / 3600 / speed * 1e9, rel=0.01)
