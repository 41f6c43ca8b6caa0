//! `libhugeheap_preload.so`: loaded by `LD_PRELOAD` before a program starts, for levels `arenas` and `objects`.
//!
//! All of it is in `hugeheap-constructor`: the constructor, and the C library's functions that it stands
//! before. The library for level `malloc`, `hugeheap-malloc`, is the same with more functions.

// Its exported functions and its constructor.
use hugeheap_constructor as _;
