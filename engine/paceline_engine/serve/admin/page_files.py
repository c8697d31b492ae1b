"""The files of a page for people, and the headers that they are served with.

`paceline tune --serve` has a page too and serves the same styles, charts and parts with it, so this
module imports no web framework.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "ui"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""A page runs its own scripts alone and talks to nobody but the port it came from."""


def of(folder: Path) -> dict[str, Path]:
    """Files of a folder that a page may consist of, by name."""
    return {file.name: file for file in folder.iterdir() if file.suffix in TYPES}
