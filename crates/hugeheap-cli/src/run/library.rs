//! Finding the preload library, `libhugeheap_preload.so`.
//!
//! In this order: where `HUGEHEAP_PRELOAD_LIBRARY` says (and then nowhere else: a wrong setting shall not be
//! covered up), where the caller says (a Python wheel carries its own), beside the program (a build tree, an
//! unpacked archive), `../lib/hugeheap` and `../lib` from there (an installation). `libhugeheap_malloc.so`, for
//! level `malloc`, is beside it.

use hugeheap::telemetry::Level;
use std::ffi::{CStr, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the library.
pub(crate) const FILE_NAME: &str = "libhugeheap_preload.so";
/// File name of the one with a `malloc`, which lies beside it.
const MALLOC: &str = "libhugeheap_malloc.so";
/// Both.
pub(super) const NAMES: [&str; 2] = [FILE_NAME, MALLOC];
/// The variable that names the library's file.
pub(crate) const VARIABLE: &str = "HUGEHEAP_PRELOAD_LIBRARY";

/// Why there is no library to load.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is in none of these places.
    Nowhere(Vec<PathBuf>),
    /// The variable names something that is not a file.
    Variable(PathBuf),
    /// It was found where `LD_PRELOAD` cannot name it.
    Unnameable(PathBuf),
    /// The one with a `malloc` is not beside the other.
    Beside(PathBuf),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere(places) => {
                if places.is_empty() {
                    return write!(
                        f,
                        "where this program lies, and {FILE_NAME} beside it, is not known without /proc; set {VARIABLE} to its path"
                    );
                }
                write!(f, "{FILE_NAME} was not found; looked at")?;
                for place in places {
                    write!(f, "\n  {}", place.display())?;
                }
                write!(f, "\nPut it at one of these places, or set {VARIABLE} to its path")
            }
            Self::Variable(path) => {
                write!(
                    f,
                    "{VARIABLE} is {}, which is not a readable file; correct it or unset it",
                    path.display()
                )
            }
            Self::Beside(path) => write!(
                f,
                "{} was not found: level malloc needs it beside {FILE_NAME}; install hugeheap again, or put it there",
                path.display()
            ),
            Self::Unnameable(path) => write!(
                f,
                "{} cannot be preloaded: LD_PRELOAD has no way to write a path with a space or a colon; \
                 move or link it elsewhere and set {VARIABLE}",
                path.display()
            ),
        }
    }
}

/// Finds the library; `caller` is the path a wheel passed.
pub(crate) fn find(caller: Option<&Path>) -> Result<PathBuf, Missing> {
    // The link is resolved: `/usr/local/bin/hugeheap` may point into an installation elsewhere.
    let program = this_program().and_then(|path| path.canonicalize()).ok();
    find_in(std::env::var_os(VARIABLE), caller, program.as_deref())
}

/// Finds the library of a level.
pub(crate) fn find_for(level: Level, caller: Option<&Path>) -> Result<PathBuf, Missing> {
    let library = find(caller)?;
    if level != Level::Malloc {
        return Ok(library);
    }
    let beside = library.with_file_name(MALLOC);
    if beside.is_file() { Ok(beside) } else { Err(Missing::Beside(beside)) }
}

/// The path of this program. Without /proc, in a sandbox, the one that it was started with.
fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe().or_else(|error| {
        // SAFETY: no preconditions.
        let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
        if path.is_null() {
            return Err(error);
        }
        // SAFETY: the kernel put a string there that stays as long as the process.
        let path = unsafe { CStr::from_ptr(path) };
        Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
    })
}

fn find_in(
    variable: Option<OsString>,
    caller: Option<&Path>,
    program: Option<&Path>,
) -> Result<PathBuf, Missing> {
    if let Some(path) = variable.filter(|value| !value.is_empty()).map(PathBuf::from) {
        return if path.is_file() { nameable(&path) } else { Err(Missing::Variable(path)) };
    }
    let mut places: Vec<PathBuf> = caller.map(Path::to_path_buf).into_iter().collect();
    if let Some(directory) = program.and_then(Path::parent) {
        places.push(directory.join(FILE_NAME));
        if let Some(prefix) = directory.parent() {
            places.push(prefix.join("lib/hugeheap").join(FILE_NAME));
            places.push(prefix.join("lib").join(FILE_NAME));
        }
    }
    match places.iter().find(|place| place.is_file()) {
        Some(place) => nameable(place),
        None => Err(Missing::Nowhere(places)),
    }
}

/// An absolute path, because the command or its children may change their directory.
fn nameable(path: &Path) -> Result<PathBuf, Missing> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n')) {
        return Err(Missing::Unnameable(path));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn places_are_tried_in_order() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (bin, lib) = (root.join("bin"), root.join("lib"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(lib.join("hugeheap")).unwrap();
        let program = bin.join("hugeheap");

        let Err(Missing::Nowhere(places)) = find_in(None, None, Some(&program)) else { panic!("found") };
        assert_eq!(places.len(), 3);
        for place in places.iter().rev() {
            fs::write(place, "").unwrap();
            assert_eq!(find_in(None, None, Some(&program)).as_ref(), Ok(place));
        }
        let own = root.join("own.so");
        fs::write(&own, "").unwrap();
        assert_eq!(find_in(None, Some(&own), Some(&program)), Ok(own.clone()));
        assert_eq!(find_in(Some(own.clone().into()), Some(&program), None), Ok(own));
    }

    #[test]
    fn a_wrong_variable_is_not_covered_up() {
        let missing = find_in(Some("/no/such/library.so".into()), None, None).unwrap_err();
        assert!(missing.to_string().contains("/no/such/library.so"));
        assert!(missing.to_string().contains(VARIABLE));
    }

    #[test]
    fn a_path_ld_preload_cannot_name_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("with space.so");
        fs::write(&path, "").unwrap();
        assert!(matches!(find_in(Some(path.into()), None, None), Err(Missing::Unnameable(_))));
    }
}
