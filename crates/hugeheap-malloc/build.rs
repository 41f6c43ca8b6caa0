//! How the library is linked: never unloaded, because the program's blocks are its memory until the process
//! ends, and ordered as the preload library is.

use std::env;

fn main() {
    let order = format!("{}/../hugeheap-preload/order.ld", env::var("CARGO_MANIFEST_DIR").unwrap());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={order}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{order}");
}
