"""The CPU kernels: C++ with a plain C interface, built by the system's compiler at first start, loaded by ctypes."""
