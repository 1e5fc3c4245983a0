"""Owns where the device's tests run: the CPU, which proves the logic, and a GPU where there is one."""

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
