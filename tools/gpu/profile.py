"""The profile of one training step (bench --profile): kernels with their times, and the time between them."""
import re


def short_name(name):
    """A kernel's name without namespaces, parameters and template arguments beyond a line."""
    name = re.sub(r"\(anonymous namespace\)::|\b(mezzo|cuda|functors)::|^void ", "", name)
    depth, end = 0, len(name)
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = at
            break
    name = name[:end].replace(" >", ">")
    return name if len(name) <= 90 else name[:87] + "..."


def kernels(work):
    """One row per name: count, microseconds, share of all kernels' time; the longest first."""
    total = sum(piece["us"] for piece in work) or 1
    rows = {}
    for piece in work:
        row = rows.setdefault(short_name(piece["name"]), {"count": 0, "us": 0.0})
        row["count"] += 1
        row["us"] += piece["us"]
    found = [{"kernel": name, **row, "share": row["us"] / total} for name, row in rows.items()]
    return sorted(found, key=lambda row: -row["us"])


def spans(work):
    """Microseconds: from the first kernel's begin to the last one's end, with at least one running, and the longest time with
    none, with the kernel before it."""
    begin = work[0]["begin_us"]
    end, busy, longest, after = begin, 0.0, 0.0, ""
    last = ""
    for piece in sorted(work, key=lambda p: p["begin_us"]):
        if piece["begin_us"] - end > longest:
            longest, after = piece["begin_us"] - end, last
        stop = piece["begin_us"] + piece["us"]
        busy += max(0.0, stop - max(end, piece["begin_us"]))
        if stop > end:
            end, last = stop, short_name(piece["name"])
    return {"span_us": end - begin, "busy_us": busy, "kernels_us": sum(p["us"] for p in work), "gaps_us": end - begin - busy,
            "longest_gap_us": longest, "longest_gap_after": after}


def summary(profile, untraced_us):
    """What the report says of a profile. untraced_us: the step's median where nothing was traced, or None."""
    work = profile["work"]
    facts = spans(work) | {"launched": len(work), "traced_wall_us": profile["wall_us"], "untraced_wall_us": untraced_us}
    if untraced_us:  # tracing makes the gaps longer, the kernels not
        facts["rest_us"] = untraced_us - facts["busy_us"]
    return facts | {"kernels": kernels(work)}
