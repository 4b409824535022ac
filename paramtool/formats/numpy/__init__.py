"""NumPy: `.npy`, `.npz`, and the parameters of MXNet 2, which are `.npz`."""
