"""Walks schedules row by row, with a counter for each source, as docs/orders.md defines them.

Reads a list of schedules as JSON and writes, for each, the source, the row in it and the stage of
every row. The sampler computes them from the number of the row: never port code from there to here.
"""

import json
import sys
from fractions import Fraction
from math import ceil, floor, lcm

LONGEST = 2**20  # period, in rows


def exact(number):
    return Fraction(repr(number))


def periodic(weights):
    """Returns the rows of each source in a period."""
    parts = [w / sum(weights) for w in weights]
    period = lcm(*(part.denominator for part in parts))
    if period > LONGEST:
        period = LONGEST
    whole = [floor(part * period) for part in parts]
    while sum(whole) < period:
        neediest = max(range(len(parts)), key=lambda i: (parts[i] * period - whole[i], -i))
        whole[neediest] += 1
    return whole


def walk(case):
    total = [0] * len(case["rows"])  # rows of each source
    limits = [floor(exact(e) * rows) if e else None for e, rows in zip(case["max_epochs"], case["rows"])]
    upcoming = [(ceil(Fraction(stage["row"], case["hosts"])), [exact(w) for w in stage["weights"]]) for stage in case["stages"]]
    if case["only"] is not None:
        upcoming = [(0, [Fraction(i == case["only"]) for i in range(len(total))])]
    number, seen = -1, []
    for row in range(case["count"]):
        change = False
        while upcoming and upcoming[0][0] <= row:
            weights, change = upcoming.pop(0)[1], True
        for i, limit in enumerate(limits):
            if weights[i] and total[i] == limit:
                weights[i], change = 0, True
        if not any(weights):
            break
        if change:
            number += 1
            quota, taken, n = periodic(weights), [0] * len(total), 0
            period = sum(quota)
        allowed = [i for i, a in enumerate(quota) if a and taken[i] * period < (n + 1) * a]
        source = min(allowed, key=lambda i: (-(-(taken[i] + 1) * period // quota[i]), i))
        seen.append((source, total[source], number))
        total[source] += 1
        taken[source] += 1
        n += 1
    return seen


json.dump([walk(case) for case in json.load(sys.stdin)], sys.stdout)
