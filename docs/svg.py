"""Boxes and texts as SVG."""

from __future__ import annotations

from html import escape


class Picture:
    """A picture of this width and height; boxes and texts are placed from the top left."""

    def __init__(self, wide: int, high: int) -> None:
        self.size = (wide, high)
        self.parts: list[str] = []

    def box(self, left: float, top: float, wide: float, high: float, colour: str, title: str = "") -> None:
        """A filled rectangle; ``title`` is shown under the pointer."""
        inner = f"><title>{escape(title)}</title></rect>" if title else "/>"
        place = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        self.parts.append(f'<rect {place} fill="{colour}"{inner}')

    def text(
        self, left: float, base: float, text: str, colour: str = "#222222", *, middle: bool = False, bold: bool = False
    ) -> None:
        """A line of text that begins, or has its middle, at ``left``."""
        anchor = ' text-anchor="middle"' if middle else ""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{left:.1f}" y="{base:.1f}" fill="{colour}"{anchor}{weight}>{escape(text)}</text>')

    def svg(self) -> str:
        """The picture as a file, on white."""
        wide, high = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" '
            'font-size="13">'
        )
        return "\n".join([head, f'<rect width="{wide}" height="{high}" fill="#ffffff"/>', *self.parts, "</svg>", ""])
