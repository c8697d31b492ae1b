"""`python -m paceline_operator`."""

import sys

from paceline_operator.shell.main import main

sys.exit(main())
