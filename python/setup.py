"""Builds the wheel. CMake builds libwarpwright from the surrounding repository. The package itself is plain Python, so one
wheel serves every Python and every PyTorch.

WARPWRIGHT_CMAKE_ARGS  more arguments for CMake: -DWARPWRIGHT_CUDA_ARCHS=90a-real, -DWARPWRIGHT_CUDA=OFF, …
WARPWRIGHT_JOBS        number of parallel compilers; by default all processors
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "wheel"
LIBRARIES = "warpwright/lib"
# Debian's packages with code that becomes a part of libwarpwright, or that the wheel brings along.
LINKED = ["libfmt-dev", "libgomp1", "libpcre2-dev", "libxxhash-dev", "libzstd-dev", "nlohmann-json3-dev", "zlib1g-dev"]


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(warpwright VERSION ([0-9.]+)", text).group(1)


def build_library(destination):
    """Installs libwarpwright and the OpenMP runtime that it needs into a folder."""
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release"]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    # The wheel needs only glibc from the system's libraries. It brings the OpenMP runtime along.
    configure += [
        "-DWARPWRIGHT_TESTS=OFF",
        "-DWARPWRIGHT_ONEDNN=OFF",
        "-DWARPWRIGHT_MPI=OFF",
        "-DWARPWRIGHT_LADDER=OFF",
        "-DWARPWRIGHT_FMT_HEADER_ONLY=ON",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    ]
    configure += shlex.split(os.environ.get("WARPWRIGHT_CMAKE_ARGS", ""))
    subprocess.run(configure, check=True)
    build = ["cmake", "--build", BUILD, "--target", "warpwright_capi", "--parallel"]
    if "WARPWRIGHT_JOBS" in os.environ:
        build.append(os.environ["WARPWRIGHT_JOBS"])
    subprocess.run(build, check=True)
    library = BUILD / "src/capi/libwarpwright.so"
    subprocess.run([ROOT / "scripts" / "check-exports", library], check=True)

    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    shutil.copyfile(library, destination / "libwarpwright.so.1")
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))
    for name in needed:
        if name.startswith("libgomp"):
            shutil.copyfile(loaded_path(library, name), destination / name)
        elif not re.match(r"(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux-x86-64)\.so", name):
            raise SystemExit(f"libwarpwright needs {name}, which some machines lack")


def notices():
    """The licenses of the libraries in the wheel, as Debian's packages state them."""
    texts = []
    for package in LINKED:
        path = Path("/usr/share/doc") / package / "copyright"
        if not path.is_file():
            raise SystemExit(f"{path}: missing; install {package}, whose license the wheel must contain")
        texts.append(f"==== {package}\n\n{path.read_text()}")
    return "\n".join(texts)


def readelf(option, library):
    return subprocess.run(["readelf", "-W", option, library], check=True, capture_output=True, text=True).stdout


def loaded_path(library, name):
    output = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    return Path(re.search(rf"{re.escape(name)} => (\S+)", output).group(1)).resolve()


def glibc_floor(folder):
    """The newest version of glibc that a library in the folder needs."""
    asked = {(2, 17)}
    for library in Path(folder).glob("*.so*"):
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("-V", library)):
            asked.add((int(major), int(minor)))
    return max(asked)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        build_library(Path(self.build_lib) / LIBRARIES)
        package = Path(self.build_lib) / "warpwright"
        shutil.copyfile(ROOT / "LICENSE", package / "LICENSE")
        (package / "NOTICES").write_text(notices())


class AnyPythonWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        built = Path(self.get_finalized_command("build").build_lib) / LIBRARIES
        major, minor = glibc_floor(built)
        return "py3", "none", f"manylinux_{major}_{minor}_x86_64"


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPythonWheel},
)
