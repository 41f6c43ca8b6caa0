//! The command that is to be started: which file it is, and whether a library can be loaded into it.
//!
//! The kernel's way is followed: `PATH`, then `#!` lines (through `/usr/bin/env NAME` too) down to the program
//! that is really executed. A hindrance found here is told in one line before the start, because what the
//! dynamic loader does in these cases is to ignore the library without a word, or to die.

use super::elf::{self, Elf, Libc, Machine};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts may name scripts as interpreters this often (the kernel's limit).
const SCRIPTS_MAX: usize = 5;
/// The kernel reads this much of a `#!` line.
const LINE_MAX: u64 = 256;

/// A command resolved to files.
#[derive(Debug)]
pub(crate) struct Target {
    /// The file that was named.
    pub(crate) path: PathBuf,
    /// The scripts on the way to the program, the first is `path`; empty when `path` is a program.
    pub(crate) scripts: Vec<PathBuf>,
    /// The program that is executed.
    pub(crate) program: PathBuf,
    /// Its headers; `None` when it may be executed but not read.
    pub(crate) elf: Option<Elf>,
}

/// Why a command cannot be started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    NotFound { name: OsString, search: Option<OsString> },
    NotExecutable { path: PathBuf, why: &'static str },
    NoInterpreter { script: PathBuf, interpreter: OsString },
    NoLoader { program: PathBuf, loader: PathBuf },
}

impl NoTarget {
    /// The exit code a shell would give.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } | Self::NoInterpreter { .. } | Self::NoLoader { .. } => {
                crate::exit::NOT_FOUND
            }
            Self::NotExecutable { .. } => crate::exit::NOT_EXECUTABLE,
        }
    }
}

impl fmt::Display for NoTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name, .. } if name.is_empty() => f.write_str(
                "the command is an empty word ('', perhaps a variable that is not set): name a program",
            ),
            Self::NotFound { name, search: None } => write!(f, "{}: no such file", shown(name)),
            Self::NotFound { name, search: Some(search) } => {
                write!(f, "{}: command not found in PATH ({})", shown(name), shown(search))
            }
            Self::NotExecutable { path, why } => write!(f, "{} cannot be executed: {why}", path.display()),
            Self::NoInterpreter { script, interpreter } => write!(
                f,
                "{} cannot be executed: its first line asks for {}, which was not found",
                script.display(),
                shown(interpreter)
            ),
            Self::NoLoader { program, loader } => write!(
                f,
                "{} cannot be executed: it was built for another C library or machine, whose loader {} is not \
                 installed",
                program.display(),
                loader.display()
            ),
        }
    }
}

/// Text of the system as far as it can be shown.
fn shown(text: &OsStr) -> std::path::Display<'_> {
    Path::new(text).display()
}

/// Why the preload library cannot be loaded into a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    Static,
    ForeignLibc(PathBuf),
    ForeignMachine { program: Machine, library: Machine },
    Secure(&'static str),
}

impl Hindrance {
    /// Whether the library may stay in the environment for the programs this one starts: it does no harm
    /// there to a static program, which never looks at it.
    pub(crate) fn spares_children(&self) -> bool {
        matches!(self, Self::Static)
    }

    /// Name in JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::ForeignLibc(_) => "foreign_libc",
            Self::ForeignMachine { .. } => "foreign_machine",
            Self::Secure(_) => "secure_execution",
        }
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => {
                f.write_str("is statically linked: no dynamic loader runs that could load hugeheap")
            }
            Self::ForeignLibc(loader) => {
                let name = match elf::libc_of(loader) {
                    Libc::Musl => "musl",
                    _ => "another C library",
                };
                write!(
                    f,
                    "uses {name} ({}), and hugeheap's library is built for the GNU C library",
                    loader.display()
                )
            }
            Self::ForeignMachine { program, library } => {
                write!(
                    f,
                    "is a program for {}, and hugeheap's library is for {}",
                    program.name(),
                    library.name()
                )
            }
            Self::Secure(why) => write!(f, "{why}: the dynamic loader ignores preloaded libraries there"),
        }
    }
}

impl Target {
    /// Resolves the command `name` as `execvp` would.
    pub(crate) fn resolve(name: &OsStr) -> Result<Self, NoTarget> {
        // glibc's execvp searches these when PATH is not set.
        let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        Self::resolve_in(name, &search)
    }

    fn resolve_in(name: &OsStr, search: &OsStr) -> Result<Self, NoTarget> {
        let path = find(name, search)?;
        let mut scripts = Vec::new();
        let mut program = path.clone();
        while scripts.len() < SCRIPTS_MAX {
            let next = match interpreter(&program) {
                Ok(Some(Interpreter::Path(next))) if next.is_file() => next,
                Ok(Some(Interpreter::Path(next))) => {
                    return Err(NoTarget::NoInterpreter { script: program, interpreter: next.into() });
                }
                Ok(Some(Interpreter::Searched(name))) => match find(&name, search) {
                    Ok(next) => next,
                    Err(_) => return Err(NoTarget::NoInterpreter { script: program, interpreter: name }),
                },
                // Not readable: it can still be executed when it is a program.
                Ok(None) | Err(_) => break,
            };
            scripts.push(std::mem::replace(&mut program, next));
        }
        let mut elf = elf::read(&program).ok().flatten();
        if elf.is_none() && fs::metadata(&program).is_ok_and(|file| file.len() > 0) && is_text(&program) {
            // No program and no `#!` line: execvp hands it to the shell.
            scripts.push(std::mem::replace(&mut program, "/bin/sh".into()));
            elf = elf::read(&program).ok().flatten();
        }
        if let Some(loader) = elf.as_ref().and_then(|elf| elf.loader.clone()) {
            if !loader.exists() {
                return Err(NoTarget::NoLoader { program, loader });
            }
        }
        Ok(Self { path, scripts, program, elf })
    }

    /// What keeps a library for `library` from being loaded, if anything.
    pub(crate) fn hindrance(&self, library: Machine) -> Option<Hindrance> {
        if let Some(elf) = &self.elf {
            if elf.machine != library {
                return Some(Hindrance::ForeignMachine { program: elf.machine, library });
            }
            match &elf.loader {
                // The dynamic loader itself may be the command: it has no loader and loads libraries.
                None if elf::libc_of(&self.program) == Libc::Gnu => {}
                None => return Some(Hindrance::Static),
                Some(loader) if elf::libc_of(loader) != Libc::Gnu => {
                    return Some(Hindrance::ForeignLibc(loader.clone()));
                }
                Some(_) => {}
            }
        }
        secure(&self.program).map(Hindrance::Secure)
    }

    /// The shell or `env` that only starts other programs, when the command is one: hooking just it brings nothing.
    pub(crate) fn wrapper(&self) -> Option<&str> {
        const WRAPPERS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"];
        let program = self.program.file_name()?.to_str()?;
        WRAPPERS.contains(&program).then_some(program)
    }

    /// The file to ask, when the command is an interpreter of one of these names, or a script of one. A wrapper
    /// (pyenv's `python3`) answers for what it starts.
    pub(crate) fn interpreter(&self, names: &[&str]) -> Option<&Path> {
        [&self.path, &self.program].into_iter().map(PathBuf::as_path).find(|path| {
            let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            names.iter().any(|name| file.strip_prefix(name).is_some_and(is_version))
        })
    }

    /// What `env` starts, when it is the command and there is such a program.
    pub(crate) fn behind_env(&self, command: &[OsString]) -> Option<Self> {
        if self.wrapper() != Some("env") || !self.scripts.is_empty() {
            return None;
        }
        let words = command.iter().skip(1).map(|word| word.as_bytes());
        Self::resolve(&named_to_env(words)?).ok()
    }
}

/// What follows an interpreter's name: `3`, `3.13t`, nothing. Not `-config`, and not `-app`.
fn is_version(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 't')
}

/// The executable file `name` stands for.
fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, NoTarget> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(NoTarget::NotExecutable { path, why: "permission to look into its directory is missing" })
            }
            Err(_) => Err(NoTarget::NotFound { name: name.to_owned(), search: None }),
            Ok(file) => match refusal(&path, &file) {
                None => Ok(path),
                Some(why) => Err(NoTarget::NotExecutable { path, why }),
            },
        };
    }
    let mut refused = None;
    for directory in std::env::split_paths(search) {
        let path =
            if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        let Ok(file) = fs::metadata(&path) else { continue };
        match refusal(&path, &file) {
            None if !name.is_empty() => return Ok(path),
            Some(why) if !file.is_dir() => refused = refused.or(Some(NoTarget::NotExecutable { path, why })),
            _ => {}
        }
    }
    Err(refused
        .unwrap_or_else(|| NoTarget::NotFound { name: name.to_owned(), search: Some(search.to_owned()) }))
}

/// Why a file may not be executed, if it may not.
fn refusal(path: &Path, file: &Metadata) -> Option<&'static str> {
    if file.is_dir() {
        return Some("it is a directory");
    }
    if !file.is_file() {
        return Some("it is not a regular file");
    }
    if file.permissions().mode() & 0o111 == 0 {
        return Some("it has no execute permission (chmod +x)");
    }
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the path is a string with an end.
    let allowed = unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0;
    (!allowed).then_some("this user has no permission to execute it")
}

#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    Path(PathBuf),
    /// By `env`, along PATH.
    Searched(OsString),
}

/// The interpreter a script's first line names, `None` when there is no such line.
fn interpreter(path: &Path) -> io::Result<Option<Interpreter>> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(LINE_MAX).read_to_end(&mut start)?;
    Ok(interpreter_of(&start))
}

fn interpreter_of(start: &[u8]) -> Option<Interpreter> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let path = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(Interpreter::Path(path));
    }
    Some(named_to_env(words).map_or(Interpreter::Path(path), Interpreter::Searched))
}

/// The program that `env` is to start, by its arguments: `-S python3 -u`, `-i NAME=value python3`. The first
/// word that is neither option nor setting.
fn named_to_env<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<OsString> {
    let mut unset = false;
    for word in words {
        let word = word.strip_prefix(b"-S").unwrap_or(word);
        if std::mem::take(&mut unset) || word.is_empty() || word.contains(&b'=') {
            continue;
        }
        if word.starts_with(b"-") {
            unset = word == b"-u" || word == b"-C";
            continue;
        }
        return Some(OsString::from_vec(word.to_vec()));
    }
    None
}

/// Whether execvp would take the file for a shell script after the kernel refused it.
fn is_text(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(LINE_MAX).read_to_end(&mut start));
    read.is_ok() && !start.contains(&0)
}

/// Whether executing `program` raises privileges, which makes the dynamic loader ignore `LD_PRELOAD`.
fn secure(program: &Path) -> Option<&'static str> {
    let file = fs::metadata(program).ok()?;
    let path = CString::new(program.as_os_str().as_bytes()).ok()?;
    // SAFETY: no arguments but the operation; the unused ones are zero as the call demands.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 || mounted_nosuid(&path) {
        return None;
    }
    // SAFETY: these calls only answer numbers.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mode = file.mode();
    if mode & libc::S_ISUID != 0 && file.uid() != user {
        return Some("is set-user-ID");
    }
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && file.gid() != group {
        return Some("is set-group-ID");
    }
    // SAFETY: path and name are strings with an end; without a buffer the call only answers the length.
    let capabilities =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    // Root has all capabilities already, and gains none.
    (capabilities > 0 && user != 0).then_some("has file capabilities")
}

/// Whether the file system of `path` ignores the bits that raise privileges.
fn mounted_nosuid(path: &CString) -> bool {
    // SAFETY: all zero is a valid value of this plain struct.
    let mut system: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path has an end, and the struct is ours to be filled.
    unsafe { libc::statvfs(path.as_ptr(), &mut system) == 0 && system.f_flag & libc::ST_NOSUID != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn first_lines_name_interpreters() {
        let path = |text: &str| Some(Interpreter::Path(text.into()));
        let searched = |text: &str| Some(Interpreter::Searched(text.into()));
        assert_eq!(interpreter_of(b"#!/bin/sh\n"), path("/bin/sh"));
        assert_eq!(interpreter_of(b"#! /usr/bin/python3 -u\nprint()"), path("/usr/bin/python3"));
        assert_eq!(interpreter_of(b"#!/usr/bin/env python3\n"), searched("python3"));
        assert_eq!(interpreter_of(b"#!/usr/bin/env -S python3 -u"), searched("python3"));
        assert_eq!(interpreter_of(b"#!/usr/bin/env -Spython3 -u"), searched("python3"));
        assert_eq!(interpreter_of(b"#!/usr/bin/env -u HOME A=b ruby"), searched("ruby"));
        assert_eq!(interpreter_of(b"#!/usr/bin/env"), path("/usr/bin/env"));
        assert_eq!(interpreter_of(b"#!\n"), None);
        assert_eq!(interpreter_of(b"\x7fELF"), None);
        assert_eq!(interpreter_of(b""), None);
    }

    #[test]
    fn scripts_are_followed_to_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let inner = script(directory.path(), "inner", "#!/usr/bin/env sh\n");
        let outer = script(directory.path(), "outer", &format!("#!{} -x\n", inner.display()));
        let target = Target::resolve_in(outer.as_os_str(), OsStr::new("/usr/bin:/bin")).unwrap();
        assert_eq!(target.scripts, [outer.clone(), inner]);
        assert!(target.program.ends_with("sh"), "{:?}", target.program);
        assert_eq!(target.wrapper(), Some("sh"));
        assert!(target.elf.is_some());

        let plain = script(directory.path(), "plain", "echo without a first line\n");
        let target = Target::resolve_in(plain.as_os_str(), OsStr::new("")).unwrap();
        assert_eq!(target.program, Path::new("/bin/sh"));
    }

    #[test]
    fn a_script_that_names_itself_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("self");
        script(directory.path(), "self", &format!("#!{}\n", path.display()));
        let target = Target::resolve_in(path.as_os_str(), OsStr::new("")).unwrap();
        assert!(target.scripts.len() >= SCRIPTS_MAX);
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "data").unwrap();
        let code =
            |name: &OsStr| Target::resolve_in(name, directory.path().as_os_str()).unwrap_err().exit_code();
        assert_eq!(code(OsStr::new("no-such-command")), 127);
        assert_eq!(code(OsStr::new("/no/such/command")), 127);
        assert_eq!(code(OsStr::new("")), 127);
        assert_eq!(code(OsStr::new("file")), 126);
        assert_eq!(code(file.as_os_str()), 126);
        assert_eq!(code(directory.path().as_os_str()), 126);
        let lost = script(directory.path(), "lost", "#!/no/such/interpreter\n");
        assert_eq!(code(lost.as_os_str()), 127);
        let message = Target::resolve_in(lost.as_os_str(), OsStr::new("")).unwrap_err().to_string();
        assert!(message.contains("/no/such/interpreter"), "{message}");
    }

    #[test]
    fn hindrances_are_told_from_the_headers() {
        let ours = Machine { bits: 64, big_endian: false, number: object::elf::EM_X86_64 };
        let other = Machine { bits: 32, number: object::elf::EM_386, ..ours };
        let target = |machine, loader: Option<&str>, program: &str| Target {
            path: program.into(),
            scripts: Vec::new(),
            program: program.into(),
            elf: Some(Elf { machine, loader: loader.map(PathBuf::from), dynamic: true }),
        };
        let gnu = Some("/lib64/ld-linux-x86-64.so.2");
        let musl = Some("/lib/ld-musl-x86_64.so.1");
        assert_eq!(target(ours, gnu, "/no/file").hindrance(ours), None);
        assert_eq!(target(ours, None, "/no/file").hindrance(ours), Some(Hindrance::Static));
        assert_eq!(target(ours, None, "/lib64/ld-linux-x86-64.so.2").hindrance(ours), None);
        assert!(matches!(target(ours, musl, "/x").hindrance(ours), Some(Hindrance::ForeignLibc(_))));
        let hindrance = target(other, gnu, "/x").hindrance(ours).unwrap();
        assert!(hindrance.to_string().contains("32-bit x86"), "{hindrance}");
    }
}
