"""`python -m fedflat` is `fedflat`."""

import sys

from .cli import main

sys.exit(main())
