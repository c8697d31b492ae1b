"""The page for people: files without data, served to everybody; what they show needs the token.

Nothing is built and nothing comes from elsewhere: HTML, one sheet of styles, a few modules. They
ask the admin port they came from, with the token that the person pastes.
"""

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from paceline_crds import flags, routes
from paceline_crds.group import bare
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import border_name, knobs
from paceline_engine.serve.admin import page_files

_FROM_OUTSIDE = routes.ADMIN_PAGE.removeprefix("/")
"""Relative, for the admin port may stand behind a prefix."""


def is_part(path: str) -> bool:
    """Whether a path belongs to the page, which is served without a token."""
    return path == "/" or f"{path}/".startswith(routes.ADMIN_PAGE)


def add_page(app: FastAPI, *, needs_token: bool) -> None:
    """Serve the page.

    Args:
        app: the admin app.
        needs_token: whether the data behind the page do.
    """
    files = page_files.of(page_files.FOLDER)

    @app.get("/", include_in_schema=False)
    @app.get(routes.ADMIN_PAGE.rstrip("/"), include_in_schema=False)
    async def to_page() -> Response:
        return RedirectResponse(_FROM_OUTSIDE, headers=page_files.HEADERS)

    @app.get(f"{routes.ADMIN_PAGE}access.json", include_in_schema=False)
    async def access() -> Response:
        """Whether to ask the person for a token."""
        return JSONResponse({"needsToken": needs_token}, headers=page_files.HEADERS)

    @app.get(f"{routes.ADMIN_PAGE}settings.json", include_in_schema=False)
    async def settings() -> Response:
        """What the contract says of each setting."""
        return JSONResponse({"settings": catalog()}, headers=page_files.HEADERS)

    @app.get(f"{routes.ADMIN_PAGE}{{name}}", include_in_schema=False)
    @app.get(routes.ADMIN_PAGE, include_in_schema=False)
    async def file(name: str = "index.html") -> Response:
        found = files.get(name)
        if found is None:
            raise HTTPException(404, f"the page has no file {name!r}; open {routes.ADMIN_PAGE}")
        return FileResponse(
            found, media_type=page_files.TYPES[found.suffix], headers=page_files.HEADERS
        )


@cache
def catalog() -> list[dict[str, Any]]:
    """Each setting with what a form needs to know of it; no value of any engine."""
    return [_entry(name) for name in knobs()]


def _entry(name: str) -> dict[str, Any]:
    fragment = TypeAdapter(bare(name)).json_schema()
    kind = "string" if "enum" in fragment else fragment.get("type", "object")
    choices = ["true", "false"] if kind == "boolean" else fragment.get("enum", [])
    return {
        "name": border_name(name),
        "kind": kind,
        "choices": choices,
        "unit": knobs()[name].unit,
        "help": flags.described(name),
        "expected": flags.expected(name),
        "live": knobs()[name].change is ChangeClass.LIVE,
    }
