"""Measures hap beside other systems on clusters of unequal devices that one Linux machine emulates.

``emulate`` builds a cluster from a cluster file and runs a command on it under torchrun; ``bench`` measures the fixed
list of pairs of cluster and workload; ``report`` writes what was measured into ``docs/``.
"""
