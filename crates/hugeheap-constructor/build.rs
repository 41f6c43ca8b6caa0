//! The unwinder, which a panic needs, is linked in. As the library `libgcc_s.so.1` it is 100 KiB resident and
//! one more file to find and map at each start, though it is never run.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match unwinder() {
        Some(directory) => {
            println!("cargo::rustc-link-search=native={}", directory.display());
            println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
        }
        None => println!(
            "cargo::warning=no libgcc_eh.a: the library will need libgcc_s.so.1, 100 KiB more in each process"
        ),
    }
}

/// The folder of the linker's own `libgcc_eh.a`. A compiler that does not have it, as one for another target,
/// prints the bare name.
fn unwinder() -> Option<PathBuf> {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let output = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
    let native = env::var("HOST") == env::var("TARGET") || env::var_os("RUSTC_LINKER").is_some();
    (native && path.is_absolute()).then(|| path.parent().map(PathBuf::from))?
}
