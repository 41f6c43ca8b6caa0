//! How the library is linked: never unloaded, and with as little resident memory as possible, because every
//! child of a process loads it.
//!
//! * The interpreter keeps pointers into it until the process ends, so it is never unloaded.
//! * What a start does not run is put apart: `order.ld`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=order.ld");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}/order.ld", env::var("CARGO_MANIFEST_DIR").unwrap());
}
