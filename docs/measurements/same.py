"""How often `hugeheap stat` takes chance for a difference: a command against itself, again and again.

    python3 same.py HUGEHEAP [TRIALS [RUNS]] [-- COMMAND...]

HUGEHEAP is the program. The command is `python3 -c pass` unless said.
"""

import json
import subprocess
import sys

words, command = sys.argv[1:], [sys.executable, "-c", "pass"]
if "--" in words:
    place = words.index("--")
    words, command = words[:place], words[place + 1 :]
program = words[0]
trials = int(words[1]) if len(words) > 1 else 100
runs = words[2] if len(words) > 2 else "10"

agreed, mistaken = 0, {}
for _ in range(trials):
    compared = [program, "stat", "--runs", runs, "--json", "--quiet", "--", *command, ":::", *command]
    told = subprocess.run(compared, stdout=subprocess.PIPE, check=True).stdout
    metrics = json.loads(told)["commands"][1]["metrics"]
    wrong = [name for name, metric in metrics.items() if metric["significant"]]
    agreed += not wrong
    for name in wrong:
        mistaken[name] = mistaken.get(name, 0) + 1
print(f"no difference in {agreed} of {trials} trials" + "".join(f"; {name}: {count}" for name, count in mistaken.items()))
