#pragma once

/// The version of the library, also in CMake's package and in pkg-config. It follows semantic versioning,
/// https://semver.org. Below 1.0, a new minor version can change any name; CHANGELOG.md describes how to migrate.
#define GATEFOLD_VERSION_MAJOR 0
#define GATEFOLD_VERSION_MINOR 1
#define GATEFOLD_VERSION_PATCH 0

/// Makes a number for comparisons: `#if GATEFOLD_VERSION >= GATEFOLD_MAKE_VERSION(0, 2, 0)`.
#define GATEFOLD_MAKE_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define GATEFOLD_VERSION GATEFOLD_MAKE_VERSION(GATEFOLD_VERSION_MAJOR, GATEFOLD_VERSION_MINOR, GATEFOLD_VERSION_PATCH)
