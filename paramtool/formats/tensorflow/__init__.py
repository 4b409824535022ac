"""TensorFlow: bundles of variables, the objects that they belong to, and SavedModel folders."""
