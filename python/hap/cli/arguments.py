"""What stands on the command line, read: models, clusters, pins, numbers of devices."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hap.errors import ClusterError, HapError, PlanError

if TYPE_CHECKING:
    from torch import nn

    from hap.cluster import Cluster
    from hap.planning.pins import Pins


class Model(NamedTuple):
    """What a model's function returns: the module, and the arguments of a call of it with one global batch."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def read_model(name: str) -> Model:
    """The model that ``file.py:function`` or ``package.module:function`` names.

    The function takes no arguments and returns the module with example inputs: ``(module, (x, y))``, ``(module,
    {"input_ids": x})`` or ``(module, (x,), {"labels": y})``. Modules are looked for in the current folder, too, and a
    file may import those beside it.

    Raises:
        HapError: there is no such function, it raises, or it returns something else.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise HapError(f'model "{name}": expected file.py:function or package.module:function')
    function = getattr(_of_user(name, lambda: _module(name, place)), attribute, None)
    if not callable(function):
        raise HapError(f'model "{name}": {place} has no function "{attribute}"')
    return _checked(name, _of_user(name, function))


def _module(name: str, place: str) -> Any:
    if not place.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise HapError(f'model "{name}": there is no file {place}')
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py can be imported"
    assert spec.loader is not None, "and has a loader"
    module = importlib.util.module_from_spec(spec)
    # Classes of the file look their module up.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _of_user(name: str, function: Callable[[], Any]) -> Any:
    """What the user's code gives; what it raises as an error that names its line."""
    try:
        return function()
    except HapError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
        line = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
        raise HapError(f'model "{name}": {line}{type(error).__name__}: {error}') from error


def _checked(name: str, made: object) -> Model:
    from torch import Tensor, nn

    if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module):
        module, *inputs = made
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return Model(module, (), dict(inputs[0]))
        args, kwargs = (*inputs, {})[:2]
        if isinstance(args, Tensor):
            args = (args,)
        if isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
            return Model(module, tuple(args), dict(kwargs))
    found = type(made).__name__
    if isinstance(made, tuple):
        found = f"a tuple of {', '.join(type(each).__name__ for each in made)}"
    raise HapError(
        f'model "{name}": expected the function to return (module, (x,)), (module, (x, y)), (module, {{"name": x}}) or '
        f'(module, (x,), {{"name": y}}), got {found}'
    )


def check_output(file: Path | None, suffix: str | None = None) -> None:
    """Before what is to be written takes minutes to find: raises ``HapError`` where no such file can be written."""
    if file is not None and not file.parent.is_dir():
        raise HapError(f"output {file}: there is no folder {file.parent}: make it first")
    if file is not None and file.is_dir():
        raise HapError(f"output {file}: this is a folder: name a file")
    if file is not None and suffix is not None and file.suffix != suffix:
        raise HapError(f"output {file}: expected a name that ends in {suffix}")


def check_device(device: str | None) -> None:
    """Raises ``HapError`` where there is no such device here, or PyTorch cannot compute on it."""
    import torch

    try:
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise HapError(f'--device "{device}": {str(error).partition(chr(10))[0]}') from error


def read_cluster(file: Path | None, devices: str | None, link: str | None) -> Cluster:
    """The cluster of a file, or of names with their numbers: ``V100:2,P100:6``, or by host ``V100:2 / P100:4,T4``.

    Of several hosts ``link`` is what joins them; inside of each a link is assumed.

    Raises:
        ClusterError: both or none are given, or one of them is wrong.
    """
    from hap.cluster import Cluster

    if (file is None) == (devices is None):
        raise ClusterError(
            "expected --cluster FILE or --devices NAME:COUNT,..., with / between hosts, and not both; "
            "hap devices lists names"
        )
    if file is not None:
        if link is not None:
            raise ClusterError("--link goes with --devices: the cluster file has its links")
        return Cluster.load(file)
    assert devices is not None
    hosts = [_names(host, devices) for host in devices.split("/")]
    return Cluster([Cluster(names) for names in hosts] if len(hosts) > 1 else hosts[0], link=link)


def _names(host: str, devices: str) -> list[str]:
    """The names of a host's devices; ``devices`` are those of all."""
    entries = [entry.strip() for entry in host.split(",")]
    if "" in entries:
        place = "beside a comma" if len(entries) > 1 else "beside a /" if "/" in devices else "there"
        raise ClusterError(
            f'--devices: "{devices.strip()}": a name is missing {place}; expected NAME:COUNT,... and / between hosts, '
            "such as V100:2,T4 / P100:4"
        )
    return [name for entry in entries for name in _counted(entry)]


def _counted(entry: str) -> list[str]:
    name, _, count = (part.strip() for part in (entry if ":" in entry else f"{entry}:1").rpartition(":"))
    if not name or not count.isdecimal() or int(count) == 0:
        raise ClusterError(f'--devices: "{entry}": expected NAME or NAME:COUNT, such as V100:2')
    return [name] * int(count)


def read_pins(option: str, given: Sequence[str]) -> Pins:
    """Placements by name, from ``NAME=Shard(0)`` or ``NAME=Replicate()|Shard(1)``.

    Raises:
        PlanError: an entry is something else.
    """
    from hap.planning.pins import as_given

    found: dict[str, tuple[str, ...]] = {}
    for entry in given:
        name, equals, placements = entry.rpartition("=")
        if not equals:
            raise PlanError(f'--{option}: "{entry}": expected NAME=PLACEMENT, such as "layers.0.weight=Shard(0)"')
        found[name] = tuple(part.strip() for part in placements.split("|"))
    try:
        return as_given(found)
    except ValueError as error:
        raise PlanError(f"--{option}: {error}") from error


def read_optimiser(text: str) -> str | int:
    """An optimiser's name, or how many tensors it keeps per parameter."""
    return int(text) if text.isdecimal() else text


def read_ranks(text: str | None) -> list[int] | None:
    """``0,2,3`` as ranks."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise PlanError(f'--active: expected ranks such as 0,2,3, got "{text}"')
    return [int(part) for part in parts]
