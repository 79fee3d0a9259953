"""Forward hooks that a parallel module itself got after it was taken: they run around the call, as of any module.

Those that it had before are part of the traced graph (:mod:`hap.runtime.changes` tells them apart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

Hooks = Sequence[tuple[int, Callable[..., Any]]]
"""By the key that PyTorch gives them, in order."""


def call(
    module: nn.Module,
    run: Callable[..., Any],
    before: Hooks,
    after: Hooks,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """What ``run`` makes of the arguments, with hooks before and after it, which may change arguments and output.

    As :class:`torch.nn.Module` does it, but for hooks that are always called: these, too, only where nothing fails.
    """
    for key, hook in before:
        if key in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(
                    f"a forward pre-hook with_kwargs= must return None or a tuple (args, kwargs), got {changed!r}"
                )
            args, kwargs = changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    output = run(*args, **kwargs)
    for key, hook in after:
        more = (kwargs,) if key in module._forward_hooks_with_kwargs else ()
        changed = hook(module, args, *more, output)
        output = output if changed is None else changed
    return output
