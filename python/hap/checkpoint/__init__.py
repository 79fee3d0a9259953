"""Checkpoints: training runs that go on under any plan, and whole states for plain PyTorch."""
