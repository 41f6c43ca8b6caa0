//! Marks the module as never unloaded: the interpreter keeps pointers into it until the process ends.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
