"""What each rank runs: lowering to ``torch.fx`` graphs, collectives, the lock-step run, and :func:`hap.parallelize`."""
