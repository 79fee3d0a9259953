"""Trains ordinary PyTorch modules on unequal devices, by the fastest distributed program that computes the same."""
