"""Shared by all tests: one thread per process."""
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
