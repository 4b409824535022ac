"""HDF5: datasets as h5py sees them, and the files of Keras and of JLD2, which are HDF5 inside."""
