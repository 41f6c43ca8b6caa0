"""What touching memory again costs, at once and after the kernel had time to hand freed pages to the host.

    python3 retouch.py [HUGE_PAGES [PAUSE_SECONDS]]
"""

import sys
import time

from common import HUGE, Region

count = int(sys.argv[1]) if len(sys.argv) > 1 else 256
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 5
Region(count * HUGE).touch_huge()
for wait in (0, pause, 0, pause):
    time.sleep(wait)
    region = Region(count * HUGE)
    took = region.touch_huge()
    del region
    print(f"{wait:>4.0f} s after it was freed: {took / count * 1e6:7.0f} µs per huge page")
