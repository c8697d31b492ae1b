"""`python -m paceline_operator`."""

import sys

from paceline_operator import missing

try:
    from paceline_operator.shell.main import main
except ModuleNotFoundError as error:
    sys.exit(missing.told(error))

sys.exit(main())
