"""Fake tensors in place of the module's parameters and buffers while it is captured.

Three reasons: modules on the meta device cannot be traced there (``nll_loss`` loses its backward in silence), fakes
take no memory, and tracing the user's own parameters leaves weak references behind that make
``torch.utils.swap_tensors`` fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hap.errors import TraceError

_TABLES = ("_parameters", "_buffers", "_modules")


class Twins:
    """Makes one fake tensor for each parameter, buffer and input: same shape, strides, element type; a real device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self._twins: dict[int, Tensor] = {}
        self._originals: list[Tensor] = []

    def _fake(self, tensor: Tensor) -> Tensor:
        device = self.device if tensor.device.type == "meta" else tensor.device
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake: Tensor = FakeTensor(self.mode, meta, device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)

    def input(self, tensor: Tensor, name: str) -> Tensor:
        """A fresh twin of an example input: one tensor passed twice makes two inputs."""
        check_plain(tensor, name)
        return self._fake(tensor)

    def of(self, tensor: Tensor, name: str) -> Tensor:
        """The twin of a parameter or buffer; the same one each time, so that tied parameters stay tied."""
        if id(tensor) not in self._twins:
            check_plain(tensor, name)
            self._twins[id(tensor)] = self._fake(tensor)
            self._originals.append(tensor)
        return self._twins[id(tensor)]

    def known(self, value: Any) -> Any:
        """``value`` with registered tensors replaced by their twins, also one level inside lists, tuples and dicts."""
        if isinstance(value, Tensor):
            return self._twins.get(id(value), value)
        if type(value) in (list, tuple) and any(id(x) in self._twins for x in value):
            return type(value)(self.known(x) for x in value)
        if type(value) is dict and any(id(x) in self._twins for x in value.values()):
            return {key: self.known(x) for key, x in value.items()}
        return value


def check_plain(tensor: Tensor, name: str) -> None:
    """Refuses tensors without one dense array of values.

    Raises:
        TraceError: the tensor has no shape yet, or is nested, sparse, quantised or of a class of its own.
    """
    if nn.parameter.is_lazy(tensor):
        raise TraceError(f'"{name}" has no shape yet: run the module once on example inputs before handing it to hap')
    if tensor.is_nested:
        raise TraceError(f'"{name}" is a nested tensor: hap trains dense tensors; pad it and pass a mask')
    if tensor.layout != torch.strided:
        raise TraceError(f'"{name}" has layout {tensor.layout}: hap trains dense tensors; use `.to_dense()`')
    if tensor.is_quantized or type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise TraceError(
            f'"{name}" is a {type(tensor).__name__}: expected a plain torch.Tensor or Parameter; hand hap the module '
            "before it is wrapped, quantised or sharded"
        )


@contextlib.contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Puts every attribute of the module and its submodules back as it was: tables of tensors, hooks, flags, caches."""
    saved: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        attributes = dict(part.__dict__)
        contents = {name: type(x)(x) for name, x in attributes.items() if isinstance(x, dict) and name.startswith("_")}
        saved.append((part, attributes, contents))
    try:
        yield
    finally:
        for part, attributes, contents in saved:
            part.__dict__.clear()
            part.__dict__.update(attributes)
            for name, content in contents.items():
                part.__dict__[name].clear()
                part.__dict__[name].update(content)


@contextlib.contextmanager
def twinned(module: nn.Module, device: torch.device) -> Iterator[Twins]:
    """Within, ``module`` holds twins; afterwards it is as it was."""
    twins = Twins(device)
    with preserved(module):
        # In this order one name of a tied tensor, the first, is the one that messages use.
        for tables in (nn.Module.named_parameters, nn.Module.named_buffers):
            for name, tensor in tables(module):
                twins.of(tensor, name)
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = twins.of(tensor, f"{path}.{name}" if path else name)
            for name, value in list(part.__dict__.items()):
                if name in _TABLES:
                    continue
                if isinstance(value, Tensor) and value.device.type == "meta" and twins.known(value) is value:
                    raise TraceError(
                        f'attribute "{path}.{name}" is a plain tensor on the meta device, so its values are unknown: '
                        "register it as a buffer, or make it on a real device"
                    )
                twin = twins.known(value)
                if twin is not value:
                    part.__dict__[name] = twin
        yield twins


def tracing_device(tensors: Sequence[Tensor]) -> torch.device:
    """The device that meta tensors stand for: the first real tensor's, else that of autocast, else the CPU."""
    for tensor in tensors:
        if tensor.device.type != "meta":
            return tensor.device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and torch.is_autocast_enabled(accelerator.type):
        return torch.device(accelerator.type, 0)
    return torch.device("cpu")
