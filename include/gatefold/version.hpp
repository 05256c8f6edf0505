#pragma once

/// The version of the library. The CMake package and pkg-config have the same version. The version follows semantic
/// versioning, https://semver.org. Before 1.0, a new minor version can rename anything; CHANGELOG.md describes how to
/// migrate.
#define GATEFOLD_VERSION_MAJOR 0
#define GATEFOLD_VERSION_MINOR 1
#define GATEFOLD_VERSION_PATCH 0

/// Converts a version to a number that can be compared, for example `#if GATEFOLD_VERSION >= GATEFOLD_MAKE_VERSION(0,
/// 2, 0)`.
#define GATEFOLD_MAKE_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define GATEFOLD_VERSION GATEFOLD_MAKE_VERSION(GATEFOLD_VERSION_MAJOR, GATEFOLD_VERSION_MINOR, GATEFOLD_VERSION_PATCH)
