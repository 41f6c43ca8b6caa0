//! The object heap for dynamic-language runtimes, on huge pages.
pub mod arena;
pub mod telemetry;
