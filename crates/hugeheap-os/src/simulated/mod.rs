//! A simulated kernel.
