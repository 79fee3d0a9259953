"""Unequal devices on one machine: processes that are slowed down, and what they measure of themselves."""
