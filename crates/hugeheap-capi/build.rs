//! How the shared library is linked: its ABI version, and that it is never unloaded.

fn main() {
    // Up to 1.0 a minor version may change the ABI.
    let version = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let abi = match version("MAJOR").as_str() {
        "0" => format!("0.{}", version("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhugeheap.so.{abi}");
    // Threads that end and forks call into it, and its maintenance thread runs in it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
