#pragma once

/// Types of the families above policy/, by name alone: arguments of the members in hooks.hpp.
namespace gatefold {

struct Noise;
template <class T, class B>
struct Candidates;
template <class T, class B>
struct SparsePlan;
template <class T, class B>
struct SlotWeights;
template <class B>
struct Groups;
namespace backend {
struct AnyFunctor;
}
namespace fn {
template <class T>
struct NoStep;
}
namespace policy {
template <class T, class B>
struct ProbeCall;
}

}  // namespace gatefold
