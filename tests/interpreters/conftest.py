"""What tests that start interpreters need of the process that starts them."""

import signal

# A shell starts background jobs with SIGINT ignored, which their children inherit: CPython's test_threading
# then waits for ever for an interrupt, on stock as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
