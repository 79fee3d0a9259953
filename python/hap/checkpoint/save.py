"""``hap.save``: modules, optimisers and what belongs to them, by all ranks together."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.optim import Optimizer

from hap.checkpoint import folder
from hap.checkpoint.contents import Entries, Named, groups_of, module_entries, named_parameters, optimiser_entries
from hap.checkpoint.piece import Piece, copied
from hap.errors import CheckpointError
from hap.runtime.agree import Control
from hap.runtime.module import ParallelModule
from hap.units import ranks_text

# One thread: saves that were started one after another are written so, in the same order on all ranks.
_writer: ThreadPoolExecutor | None = None
# The latest save in the background: the next save or load waits for it, as they may concern the same folder.
_last: Future[None] | None = None
# The ranks on a group that only this thread uses.
_background: dict[dist.ProcessGroup | None, Control] = {}


def save(
    path: str | os.PathLike[str], contents: Mapping[str, Any], *, asynchronous: bool = False
) -> Future[None] | None:
    """Save a training run, each rank its own part. A collective: all ranks call it.

    ``hap.save("checkpoint", {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 100})``

    The checkpoint can be loaded under any other plan, on any number of devices, and by plain PyTorch (:func:`load`,
    :func:`full_state_dict`). What the folder held before is replaced in one step when all of it is written: a
    save that is cut off leaves it as it was. It takes room for both meanwhile. All ranks must see the same folder.

    Args:
        path: a folder that holds nothing else; made if it is not there.
        contents: by name, modules (parallel or not), their optimisers, other objects with ``state_dict`` and
            ``load_state_dict`` (schedulers, data loaders), and values that pickle can write. Of what is no part
            of a parallel module or of its optimiser, one rank's is saved: it must be the same on all.
        asynchronous: copy everything into the host's memory, and write in the background while training goes on.
            Wait for the last one before the process group is destroyed.

    Returns:
        With ``asynchronous`` what ends when the checkpoint is there: ``.result()`` waits, and raises as ``save`` does.

    Raises:
        CheckpointError: it could not be written; on all ranks.
    """
    global _writer, _last
    finish_earlier()
    path = Path(path)
    control = control_of(contents)

    def prepared() -> tuple[Entries, folder.Pointer]:
        modules = modules_of(contents)
        for key, module in modules.items():
            if isinstance(module, ParallelModule) and not module._hap_session.placed:
                raise CheckpointError(
                    f'"{key}" has no plan yet, so that each rank may hold other parameters: call it once, or give '
                    "hap.parallelize example inputs, before it is saved"
                )
        named = named_parameters(modules)
        entries = entries_of(contents, named)
        pointer = folder.Pointer(
            format=folder.FORMAT,
            data="",
            token="",
            modules={
                key: module.rng_state if isinstance(module, ParallelModule) else None for key, module in modules.items()
            },
            optimisers={
                key: groups_of(key, value, named) for key, value in contents.items() if isinstance(value, Optimizer)
            },
        )
        return (_staged(entries) if asynchronous else entries), pointer

    entries, pointer = control.together(prepared, "collecting what to save")
    if not asynchronous:
        _write(path, entries, pointer, control)
        return None
    if _writer is None:
        _writer = ThreadPoolExecutor(1, thread_name_prefix="hap-checkpoint")
    if control.group not in _background:
        _background[control.group] = control.apart()
    _last = _writer.submit(_write, path, entries, pointer, _background[control.group])
    return _last


def finish_earlier() -> None:
    """Wait for a save in the background, whatever becomes of it."""
    if _last is not None:
        wait([_last])


def control_of(contents: Mapping[str, Any]) -> Control:
    """The ranks that hold these contents together. Raises :class:`CheckpointError` unless they are a mapping."""
    if not isinstance(contents, Mapping):
        kind = type(contents).__name__
        raise CheckpointError(f'expected what to save or load by name, such as {{"model": model}}, got a {kind}')
    for value in contents.values():
        if isinstance(value, ParallelModule):
            return value._hap_session.control
    return Control(dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)


def modules_of(contents: Mapping[str, Any]) -> dict[str, nn.Module]:
    """The modules among what is saved or loaded."""
    return {key: value for key, value in contents.items() if isinstance(value, nn.Module)}


def entries_of(contents: Mapping[str, Any], named: Mapping[int, Named]) -> Entries:
    """What goes into the checkpoint, by name; ``named`` are the parameters of its modules."""
    entries: Entries = {}
    for key, value in contents.items():
        if isinstance(value, nn.Module):
            entries[key] = module_entries(value)
        elif isinstance(value, Optimizer):
            entries[key] = optimiser_entries(key, value, named)
        else:
            entries[key] = (value.state_dict() if is_stateful(value) else value,)
    return entries


def is_stateful(value: Any) -> bool:
    """Whether an object gives and takes its state."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def carried_out(what: str, communicate: Callable[[], Any]) -> None:
    """Let the library read or write; its errors as ours.

    Raises:
        CheckpointError: names the ranks that failed.
    """
    try:
        with warnings.catch_warnings():
            # A job of one process is no mistake.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            communicate()
    except CheckpointException as error:
        failures = {rank: failure[0] for rank, failure in error.failures.items()}
        first = failures[min(failures)]
        text = str(first) or type(first).__name__
        raise CheckpointError(f"{what} failed on {ranks_text(sorted(failures))}: {text}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{what} failed: {error}") from error


def check_shared(control: Control, data: Path, token: str) -> None:
    """Check that all ranks see the data of a checkpoint. A collective.

    Raises:
        CheckpointError: names those that do not; on all ranks.
    """
    seen = control.gather(folder.sees(data, token), "looking for the folder of a checkpoint")
    blind = [rank for rank, one in enumerate(seen) if not one]
    if blind:
        raise CheckpointError(
            f"{ranks_text(blind)} {'does' if len(blind) == 1 else 'do'} not see {data} as rank 0 does: a checkpoint "
            "must lie in a folder that all hosts share, under the same path"
        )


def _write(path: Path, entries: Entries, pointer: folder.Pointer, control: Control) -> None:
    data, token = control.settle(lambda: folder.begin(path), "making room for a checkpoint")
    check_shared(control, path / data, token)
    carried_out(
        f"saving to {path}",
        lambda: state_dict_saver.save(
            entries,
            storage_writer=FileSystemWriter(path / data),
            process_group=control.group,
            no_dist=control.group is None,
        ),
    )
    pointer = msgspec.structs.replace(pointer, data=data, token=token)
    control.settle(lambda: folder.publish(path, pointer), "completing a checkpoint")


def _staged(value: Any) -> Any:
    """A copy in the host's memory, which later steps do not change."""
    if isinstance(value, Piece):
        return value.staged()
    if isinstance(value, torch.Tensor):
        return copied(value)
    if isinstance(value, dict):
        return {key: _staged(item) for key, item in value.items()}
    return copy.deepcopy(value)
