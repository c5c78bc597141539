"""Find a definition file: explicit path, then the working directory, then the packaged copy.

An installed wheel carries the folders under `autotune/_definitions/`; an editable install has no
such copy and falls back to the checkout that holds the package.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from autotune.errors import UnknownStudy

__all__ = ["Folder", "find", "find_suite", "folder_roots", "names"]

Folder = Literal["search_spaces", "objectives", "storage"]


def folder_roots(folder: Folder) -> tuple[Path, ...]:
    """Folders searched for definitions, first match wins; only those that exist."""
    packaged = Path(str(resources.files("autotune"))) / "_definitions" / folder
    checkout = Path(str(resources.files("autotune"))).parent / folder
    return tuple(
        dict.fromkeys(
            root.resolve() for root in (Path.cwd() / folder, packaged, checkout) if root.is_dir()
        )
    )


def names(folder: Folder) -> tuple[str, ...]:
    """Names of all definitions that `find` would find, sorted."""
    return tuple(sorted({p.stem for root in folder_roots(folder) for p in root.glob("*.toml")}))


def find(folder: Folder, name: str, *, beside: Path | None = None) -> Path:
    """Path of the definition called `name`.

    Args:
        name: A path to a file, or a name without its ending.
        beside: Another definition file; its folder and one of this kind next to it are searched
            first, so that a pair of files outside the working directory finds itself.

    Raises:
        UnknownStudy: There is none; the message lists the names that exist.
    """
    as_path = Path(name)
    if as_path.suffix == ".toml" or len(as_path.parts) > 1:
        if as_path.is_file():
            return as_path
        if beside is not None and (beside.parent / as_path).is_file():
            return beside.parent / as_path
        tried = [as_path.absolute()]
        if beside is not None and not as_path.is_absolute():
            tried.append((beside.parent / as_path).absolute())
        looked = " and ".join(str(path) for path in dict.fromkeys(tried))
        raise UnknownStudy(f"there is no file {name}", hint=f"looked at {looked}")
    roots = folder_roots(folder)
    if beside is not None:
        near = beside.resolve().parent
        # A folder of another kind holds other files of that name: a copied study's own original.
        own = () if near.name in get_args(Folder) else (beside.parent,)
        roots = (*own, beside.parent.parent / folder, *roots)
    for root in roots:
        candidate = root / f"{name}.toml"
        if candidate.is_file() and candidate != beside:
            return candidate
    known = ", ".join(names(folder)) or "none"
    what = "study" if folder == "search_spaces" else "objective"
    raise UnknownStudy(
        f"no {what} {name!r}: there is no {folder}/{name}.toml", hint=f"there are: {known}"
    )


def find_suite(name: str, *, beside: Path) -> Path:
    """Path of a suite of coding tasks: a folder, or one file of them.

    Args:
        name: A path, or the name of a folder in `objectives/`.
        beside: The objective file that names it; its folder is searched first.

    Raises:
        UnknownStudy: There is none.
    """
    given = Path(name)
    is_path = bool(given.suffix) or len(given.parts) > 1
    roots = (Path(), beside.parent) if is_path else (beside.parent, *folder_roots("objectives"))
    for root in roots:
        if given.name and (root / given).exists():
            return (root / given).resolve()
    raise UnknownStudy(
        f"no suite of coding tasks {name!r}",
        hint="give the path of a folder of .toml files, or of a .jsonl file",
    )
