"""Conan 2: the headers, with Eigen 3.4 or 5 of the system (Debian: libeigen3-dev). From the root of the repository:

    conan create cmake/conan
"""

import os
import pathlib
import re

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.files import copy


class Gatefold(ConanFile):
    name = "gatefold"
    license = "Apache-2.0"
    description = "Tensors and mixture-of-experts layers, header-only C++20"
    topics = ("mixture-of-experts", "machine-learning", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    @property
    def root(self):
        return pathlib.Path(self.recipe_folder).parent.parent

    def set_version(self):
        text = (self.root / "include/gatefold/version.hpp").read_text()
        self.version = ".".join(re.findall(r"define GATEFOLD_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def export_sources(self):
        copy(self, "include/*", self.root, self.export_sources_folder)
        copy(self, "LICENSE", self.root, self.export_sources_folder)

    def package(self):
        copy(self, "include/*", self.source_folder, self.package_folder)
        copy(self, "LICENSE", self.source_folder, self.package_folder + "/licenses")

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_target_name", "gatefold::gatefold")
        self.cpp_info.system_libs = ["pthread"]
        prefixes = ("/usr", "/usr/local", "/opt/homebrew")
        folders = [folder for folder in (f"{prefix}/include/eigen3" for prefix in prefixes) if os.path.isdir(folder)]
        if not folders:
            raise ConanException(f"gatefold: Eigen: expected include/eigen3 in one of {prefixes}, found none")
        self.cpp_info.includedirs.append(folders[0])
