"""Measures real machines: operators of each device, collectives between them, fitted for the cost model."""

from hap.profiling.run import profile

__all__ = ["profile"]
