"""Reads next of a directory until standard input ends, and prints the first token of each row of x.

Usage: schedule.py DIRECTORY ROWS
"""

import array
import os
import select
import sys
import time

path, rows = os.path.join(sys.argv[1], "next"), int(sys.argv[2])
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    with open(path, "rb", buffering=0) as file:
        batch = array.array("I", file.read())
    x = batch[:len(batch) // 2]
    print(*x[::len(x) // rows])
    time.sleep(0.002)
