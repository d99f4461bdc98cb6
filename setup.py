"""Compiles the parts of the package that are C; all else stands in pyproject.toml.

None of them is a Python extension module: they are loaded by ctypes and by the dynamic linker,
so one build serves every Python version. So do the compiled kernels that wheels bring.
"""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = "simpler_ref/native_chip"
SOURCES = {
    "_shim": ["shim", "faults"],
    "_runtime": ["runtime", "run", "pool", "callable", "arena", "records"],
    "_launch_all": ["launch_all"],
}
CALLED_BY_PYTHON = {
    "jit._entry": ["jit/src/entry"],
    "calls._quick": [f"calls/src/{source}" for source in ("quick", "inside", "places", "touch")],
}
PYTHON_ABI = "simpler_ref/jit/src"
LINKED_WITH = {"_runtime": "_shim"}
HEADERS = {
    "include": ["simpler_layout", "simpler_l2", "simpler_kernel", "simpler_domain"],
    "src": ["arena", "callable", "pool", "records", "run", "shim"],
}
FLAGS = ["-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
LINK_FLAGS = ["-pthread", "-Wl,--no-undefined,-rpath,$ORIGIN"]
LIBRARIES = ["dl"]


class BuildSharedObjects(build_ext):
    """Builds plain shared objects: no tag of a Python version, no init function."""

    def get_ext_filename(self, fullname):
        """Return the path of an extension by its dotted name."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext):
        """Return nothing: the sources say what is visible."""
        return []

    def build_extension(self, ext):
        """Build one of them; those it is linked with stand before it."""
        name = ext.name.rpartition(".")[2]
        if name in LINKED_WITH.values():  # there is one of it for all that need it, to the end
            ext.extra_link_args.append(f"-Wl,-soname,{name}.so,-z,nodelete")
        if name in LINKED_WITH:
            needed = self.get_ext_fullpath(ext.name.replace(name, LINKED_WITH[name]))
            ext.extra_objects.append(needed)
            ext.depends.append(needed)
        super().build_extension(ext)


class BuildWheel(bdist_wheel):
    """Builds a wheel for a kind of machine and every Python."""

    def get_tag(self):
        """Return the versions of Python, their interface, and the kind of machine."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildSharedObjects, "bdist_wheel": BuildWheel},
    ext_modules=[
        *(
            Extension(
                f"simpler_ref.native_chip.{name}",
                [f"{HERE}/src/{source}.c" for source in sources],
                include_dirs=[f"{HERE}/include"],
                depends=[
                    f"{HERE}/{folder}/{name}.h" for folder in HEADERS for name in HEADERS[folder]
                ],
                extra_compile_args=FLAGS,
                extra_link_args=list(LINK_FLAGS),
                libraries=LIBRARIES,
            )
            for name, sources in SOURCES.items()
        ),
        *(
            Extension(
                f"simpler_ref.{name}",
                [f"simpler_ref/{source}.c" for source in sources],
                include_dirs=[PYTHON_ABI],
                depends=[f"{PYTHON_ABI}/python_abi.h"],
                extra_compile_args=FLAGS,  # what they refer to is in the interpreter that loads them
            )
            for name, sources in CALLED_BY_PYTHON.items()
        ),
    ],
)
