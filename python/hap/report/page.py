"""The page: tables that stand without scripts, and the data that the script draws from."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

import msgspec

from hap.report.data import Contents, Line
from hap.units import bytes_text, runs_text, seconds_text

# Of the picture of memory, in its own units.
WIDTH, HEIGHT = 1000.0, 120.0
# The limit is in the picture where it is so many times the peak, at most.
LIMITED = 3.0
# On a phone, tables of more columns have a line for each cell.
NARROW = 3


def render(contents: Contents) -> str:
    """The page of a report. All that comes of the plan is escaped; nothing is loaded from anywhere."""
    style, script = (files("hap.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = (
        ("shares", "Shares", _shares(contents)),
        ("devices", "Devices", _devices(contents)),
        ("timeline", "A step by the clock", _timeline(contents)),
        ("memory", "Memory", _memory(contents)),
        ("baselines", "Baselines", _baselines(contents)),
        ("program", "Program", _program(contents)),
    )
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    bodies = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{body}</section>'
        for name, title, body in sections
    )
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in contents.facts)
    notes = "".join(f"<li>{escape(note)}</li>" for note in contents.notes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(contents.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header><h1>{escape(contents.title)}</h1><button id="theme" type="button">Dark</button></header>\n'
        f'<nav aria-label="Parts of the report">{links}</nav>\n<main id="main">\n'
        f'<dl class="facts">{facts}</dl>\n' + (f'<ul class="notes">{notes}</ul>\n' if notes else "") + f"{bodies}\n"
        "</main>\n"
        f'<script id="data" type="application/json">{_data(contents)}</script>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(contents: Contents) -> str:
    """What the script draws, as JSON in which nothing ends a script."""
    told = {
        "seconds": contents.seconds,
        "lines": [
            {"title": f"{runs_text(line.devices)}: {line.name}", "devices": _devices_of(line), "busy": line.busy}
            for line in contents.lines
        ],
        "communication": contents.communication,
        "program": contents.program,
    }
    text = msgspec.json.encode(told).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML; the first of a row is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f'<td data-head="{escape(name)}">{cell}</td>' for name, cell in zip(heads[1:], cells, strict=True))
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll{" wide" * (len(heads) > NARROW)}" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _bar(part: float, kind: str = "") -> str:
    """A bar of a part, 0 to 1, beside a number that says the same."""
    width = 100.0 * max(0.0, min(1.0, part))
    return (
        f'<svg class="bar {kind}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="ground" width="100" height="8"/><rect class="part" width="{width:.2f}" height="8"/></svg>'
    )


def _shares(contents: Contents) -> str:
    if not contents.splits:
        return "<p>Nothing is split: each device at work computes all of it.</p>"
    found = []
    for split in contents.splits:
        total = sum(split.units)
        names = ", ".join(split.names)
        rows = (
            (
                f"{device.rank}: {escape(device.name)}",
                f"{units}",
                f"{_bar(units / total)} {units / total:.1%}",
            )
            for device, units in zip(contents.devices, split.units, strict=True)
        )
        each = " each" * (len(split.names) > 1)
        found.append(_table(f"{names}: {total} units{each}", ("Device", "Units", "Share"), rows))
    return "".join(found)


def _devices(contents: Contents) -> str:
    words = {
        "compute": "its own computation",
        "link": "collectives",
        "others": "waiting for other devices",
        "memory": "its memory",
        "idle": "nothing: it is left out",
    }
    heads = ("Device", "Computes", "Sends meanwhile", "Only sends", "Waits", "Memory at peak", "Limited by")
    rows = (
        (
            f"{device.rank}: {escape(device.name)}",
            seconds_text(device.computing + device.both),
            seconds_text(device.both),
            seconds_text(device.communicating),
            seconds_text(device.waiting),
            f"{bytes_text(device.memory)} of {bytes_text(device.usable)}",
            words[device.limit],
        )
        for device in contents.devices
    )
    return _table("What each device does in a step", heads, rows)


def _timeline(contents: Contents) -> str:
    step = seconds_text(contents.seconds)
    return (
        '<div class="tools" role="toolbar" aria-label="Timeline">'
        '<button type="button" id="closer">Zoom in</button><button type="button" id="wider">Zoom out</button>'
        '<button type="button" id="earlier">Earlier</button><button type="button" id="later">Later</button>'
        '<button type="button" id="whole">Whole step</button></div>'
        '<canvas id="clock" tabindex="0" role="application" aria-describedby="keys chosen" '
        f'aria-label="Timeline of a step of {escape(step)}, by devices that do the same, and of all collectives">'
        "The table of devices above says how long each of them computes, sends and waits.</canvas>"
        '<p id="keys" class="hint">Drag, or the arrow keys, move; + and -, or Ctrl with the wheel, zoom; '
        "comma and full stop choose the event before and after; Home shows the whole step.</p>"
        '<p id="chosen" class="chosen" aria-live="polite">Nothing is chosen: click an event, or press the full stop in '
        "the picture.</p>"
    )


def _devices_of(line: Line) -> str:
    """Such as ``devices 0-3, 8``."""
    return f"device{'s' * (len(line.devices) > 1)} {runs_text(line.devices)}"


def _memory(contents: Contents) -> str:
    return "".join(_memory_of(line, contents.seconds) for line in contents.lines)


def _memory_of(line: Line, seconds: float) -> str:
    """One picture: bytes held over a step, and the limit."""
    peak = max((held for _, held in line.memory), default=0)
    shows_limit = line.usable <= LIMITED * peak
    top = 1.05 * max(peak, line.usable if shows_limit else 0.0, 1.0)

    def down(held: float) -> float:
        return HEIGHT * (1.0 - held / top)

    points, last = [f"M0 {HEIGHT:.1f}"], 0.0
    for start, held in line.memory:
        across = WIDTH * start / seconds if seconds else 0.0
        points += [f"L{across:.1f} {down(last):.1f}", f"L{across:.1f} {down(held):.1f}"]
        last = held
    path = " ".join([*points, f"L{WIDTH:.1f} {down(last):.1f}", f"L{WIDTH:.1f} {HEIGHT:.1f} Z"])
    limit = (
        f'<line class="limit" x1="0" x2="{WIDTH:.0f}" y1="{down(line.usable):.1f}" y2="{down(line.usable):.1f}"/>'
        if shows_limit
        else ""
    )
    note = "dashed" if shows_limit else "which lie above the picture"
    text = (
        f"{_devices_of(line)} ({line.name}): at most {bytes_text(peak)} over a step of {seconds_text(seconds)}, "
        f"of {bytes_text(line.usable)} that may be used ({note})"
    )
    return (
        f'<figure><svg class="memory" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(text)}"><path class="held" d="{path}"/>{limit}</svg>'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )


def _baselines(contents: Contents) -> str:
    slowest = max((each.seconds for each in contents.strategies if each.seconds is not None), default=0.0)
    rows = []
    for each in contents.strategies:
        seconds, memory = each.seconds, each.memory
        bar = "" if seconds is None or not slowest else _bar(seconds / slowest, "other" if each.obstacle else "")
        time = "-" if seconds is None else seconds_text(seconds)
        held = "-" if memory is None else bytes_text(memory)
        rows.append((escape(_named(each.name)), f"{bar} {time}", held, escape(each.obstacle)))
    heads = ("Strategy", "Step", "Most memory on a device", "Remark")
    return _table("This plan beside well-known strategies on all devices, predicted", heads, rows)


def _named(strategy: str) -> str:
    """A strategy in words, with its name: ``DDP, even shares (ddp_even)``."""
    kind, _, shares = strategy.partition("_")
    kinds = {"ddp": "DDP", "zero3": "ZeRO-3, FSDP", "tensor": "tensor parallelism"}
    words = {"even": "even shares", "proportional": "shares in proportion to speed"}
    if kind not in kinds or shares not in words:
        return strategy
    return f"{kinds[kind]}, {words[shares]} ({strategy})"


def _program(contents: Contents) -> str:
    count = len(contents.program)
    return (
        '<div class="tools"><label for="find">Search</label>'
        '<input id="find" type="search" placeholder="operator, tensor, module, source line" autocomplete="off" '
        'spellcheck="false"><output id="found" for="find" aria-live="polite">'
        f"{count} instructions</output></div>"
        '<div id="list" class="list" role="listbox" tabindex="0" aria-label="Instructions of the program, in order">'
        '<div id="rows"></div></div><noscript><p>The program is listed where scripts may run.</p></noscript>'
    )
