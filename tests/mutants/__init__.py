"""Which small mistakes in the core the tests see: mutants of ten modules, and the test that failed for each."""
