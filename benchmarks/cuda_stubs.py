"""Make shared objects that let a CUDA build of PyTorch start on a machine without CUDA: `python cuda_stubs.py LIBDIR`.

torch_xla 2.9 needs PyTorch 2.9, whose x86-64 wheel on PyPI is a CUDA build; the libraries it links against are 2.5 GB
of wheels that a CPU benchmark never calls. For each one that is missing from LIBDIR (`.../site-packages/torch/lib`,
where the loader looks first) this writes a small stand-in with the same name and the symbols PyTorch imports from it.
Every function returns 100, which is `cudaErrorNoDevice`: PyTorch sees what is true, a machine with no CUDA device.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nv)[A-Za-z_]*\.so\.\d+$")
CUDA_SYMBOL = re.compile(r"_{0,2}(cu|nccl|nv)[a-zA-Z]")


def main(folder: Path) -> None:
    """Write the stand-ins that the libraries in `folder` (e.g. `site-packages/torch/lib`) need."""
    libraries = sorted(folder.glob("*.so"))
    needed = {name for library in libraries for name in needed_libraries(library) if CUDA_LIBRARY.match(name)}
    missing = sorted(name for name in needed if not loads(name))
    imports = imported_symbols(libraries)
    versions = required_versions(libraries)
    # A symbol without a version may come from any of them, and the loader searches them all: the first holds the lot.
    unversioned = imports.get("", set())
    for name in missing:
        write_stub(folder / name, {version: imports[version] for version in versions.get(name, ())}, unversioned)
        unversioned = set()
    print(f"{len(missing)} CUDA stand-ins in {folder}")


def needed_libraries(library: Path) -> list[str]:
    """The sonames `library` is linked against, e.g. `["libcudart.so.12", "libc.so.6"]`."""
    text = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"NEEDED\s+(\S+)", text)


def loads(name: str) -> bool:
    """Whether the machine already has the library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def imported_symbols(libraries: list[Path]) -> dict[str, set[str]]:
    """Symbol version ("" where the symbol carries none) -> the symbols imported under it, CUDA's or others'."""
    found: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        text = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True)
        for symbol, version in re.findall(r"\s[Uw] ([^@\s]+)(?:@+(\S+))?", text.stdout):
            if version or CUDA_SYMBOL.match(symbol):
                found[version].add(symbol)
    return found


def required_versions(libraries: list[Path]) -> dict[str, set[str]]:
    """Soname -> the symbol versions asked of it, e.g. `{"libnvshmem_host.so.3": {"NVSHMEM"}}`."""
    found: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        text = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
        for name, block in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
            found[name].update(line.split()[-1] for line in block.splitlines())
    return found


def write_stub(target: Path, versioned: dict[str, set[str]], unversioned: set[str]) -> None:
    """Compile `target` with the symbols of each version (version -> symbols) and those that have none."""
    source = target.with_suffix(".stub.s")
    version_map = target.with_suffix(".stub.map")
    symbols = unversioned.union(*versioned.values())
    body = "".join(f".globl {s}\n.type {s}, @function\n{s}:\n" for s in sorted(symbols))
    source.write_text(f".text\n{body}mov $100, %eax\nret\n")
    blocks = [f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in versioned.items()]
    version_map.write_text("\n".join(blocks))
    script = [f"-Wl,--version-script,{version_map}"] if blocks else []
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{target.name}", *script, "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    source.unlink()
    version_map.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
