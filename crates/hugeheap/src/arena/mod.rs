//! Arenas (under construction in this commit's successors).
mod policy;
pub use policy::Policy;
