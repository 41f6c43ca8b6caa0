"""Makes `testbed`, beside this file, importable whatever pytest's import mode."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

# A shell starts background jobs with SIGINT ignored, which their children inherit: CPython's test_threading then waits for ever for an
# interrupt, on stock as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
