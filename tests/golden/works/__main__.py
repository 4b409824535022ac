"""`python -m tests.golden.works`."""

import os
import sys

from tests.golden.works import main

os.environ.setdefault("KERAS_BACKEND", "torch")  # as tests/conftest.py
sys.exit(main())
