"""Check the house rules that no other tool knows: prints each violation, exits 1 if there is one.

Rooms and test folders are plain folders, files stay short, no file names a path of one machine or
holds both sides of a merge, paths of HTTP are written once, and pages name files that exist.
"""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("operator", "engine", "kernels", "crds")
MAX_LINES = 400
SOURCE = {".py", ".cpp", ".h", ".sh"}
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:py|h|lua|sh))`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
MERGE_MARK = re.compile(r"(?:<{7}|>{7}) ")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|opt/wheels)/")


def tracked_files() -> list[Path]:
    """Files that git tracks or would track, as paths that exist."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def room_violations(files: list[Path]) -> list[str]:
    """A room or a test folder that is a package shadows the standard library's `operator`."""
    bad = []
    for path in files:
        relative = path.relative_to(ROOT)
        if path.name != "__init__.py":
            continue
        if (len(relative.parts) == 2 and relative.parts[0] in ROOMS) or relative.parts[0] in (
            "tests",
            "e2e",
        ):
            bad.append(f"{relative}: rooms and test folders are not packages; delete this file")
    return bad


def length_violations(files: list[Path]) -> list[str]:
    """A file is a noun with one reason to change."""
    bad = []
    for path in files:
        if path.suffix not in SOURCE:
            continue
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            bad.append(f"{path.relative_to(ROOT)}: at most {MAX_LINES} lines, got {lines}")
    return bad


def line_violations(files: list[Path]) -> list[str]:
    """No line depends on where one machine keeps its files, or was left over from a merge."""
    bad = []
    for path in files:
        if path == Path(__file__).resolve() or path.suffix in {".png", ".lock"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line):
                bad.append(f"{path.relative_to(ROOT)}:{number}: names a path of one machine")
            if MERGE_MARK.match(line):
                bad.append(f"{path.relative_to(ROOT)}:{number}: a conflict that nobody resolved")
    return bad


def route_violations(files: list[Path]) -> list[str]:
    """A path of HTTP is written once, in the contract; sentences and docstrings may name it."""
    home = ROOT / "crds/paceline_crds/routes.py"
    paths = {value for name, value in runpy.run_path(str(home)).items() if name.isupper()}
    bad = []
    for path in files:
        if path.suffix != ".py" or path.relative_to(ROOT).parts[0] not in ROOMS or path == home:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in paths:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                bad.append(f"{place}: {node.value!r} is a route; take it from paceline_crds.routes")
    return bad


def page_violations(files: list[Path]) -> list[str]:
    """A page that says where something is must not be left behind when it moves."""
    known = [f"/{path.relative_to(ROOT)}" for path in files]
    bad = []
    for page in (path for path in files if path.suffix == ".md"):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            gone = [
                name
                for name in NAMED_FILE.findall(line)
                if not any(path.endswith(f"/{name}") for path in known)
            ]
            gone += [link for link in LINK.findall(line) if not (page.parent / link).exists()]
            place = f"{page.relative_to(ROOT)}:{number}"
            bad += [f"{place}: {name} does not exist; name the file by its path" for name in gone]
    return bad


def main() -> int:
    """Run every check."""
    files = tracked_files()
    bad = room_violations(files) + length_violations(files)
    bad += line_violations(files) + route_violations(files) + page_violations(files)
    for line in bad:
        print(line)
    print(f"house: {len(files)} files, {len(bad)} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
