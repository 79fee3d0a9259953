"""The fixed list of pairs of cluster and workload, sized so that a step of the best system takes 0.3 to 3 seconds."""

from __future__ import annotations

from dataclasses import dataclass

from benches.cluster import workloads
from benches.cluster.clusters import CLUSTERS
from benches.cluster.workloads import Workload

import hap

DATA_PARALLEL = ("ddp_even", "ddp_proportional", "fsdp2")


@dataclass(frozen=True)
class Pair:
    """A workload on a cluster.

    Attributes:
        cluster: the name of one of :data:`CLUSTERS`.
        kind: what the workload is called.
        workload: the model and its batches.
        together: whether the systems fit into memory all at once, and take turns; else each has a job of its own.
    """

    cluster: str
    kind: str
    workload: Workload
    together: bool = True

    @property
    def systems(self) -> tuple[str, ...]:
        """Those that are compared: tensor parallelism only where people write it."""
        return ("hap", *DATA_PARALLEL, *(("tensor",) if self.workload.tensor else ()))

    @property
    def machines(self) -> hap.Cluster:
        """What is emulated."""
        return CLUSTERS[self.cluster]


_LIST = (
    Pair("100:30", "gpt2", workloads.gpt2(16)),
    Pair("100:30", "vgg", workloads.vgg(160)),
    Pair("60:20:60:20", "bert_moe", workloads.bert_moe(32, experts=8)),
    Pair("60:20:60:20", "vit", workloads.vit(64)),
    Pair("80:40:40:40", "vgg", workloads.vgg(96)),
    Pair("80:40:40:40", "dlrm", workloads.dlrm(4096, hidden=512)),
    Pair("hosts, 50 Mbit/s", "gpt2", workloads.gpt2(32, vocabulary=1024, width=128)),
    Pair("hosts, 50 Mbit/s", "dlrm", workloads.dlrm(8192, rows=1024, hidden=512)),
    Pair("hosts, 200 Mbit/s", "bert_moe", workloads.bert_moe(32, experts=8)),
    Pair("hosts, 200 Mbit/s", "vgg", workloads.vgg(160)),
    Pair("60:20, little memory", "gpt2", workloads.gpt2(16, length=32, width=768, layers=6), together=False),
    Pair("equal", "vit", workloads.vit(64)),
)
PAIRS = {f"{pair.cluster}; {pair.kind}": pair for pair in _LIST}
