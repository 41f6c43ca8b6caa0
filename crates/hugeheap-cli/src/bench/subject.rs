//! Programs of other languages that do the same work as hugeheap's own: found on this machine, written to a
//! temporary directory, compiled where that is needed.
//!
//! ```text
//!   source in this program ──▶ file in a Workshop ──▶ compiler found? ──▶ Subject (a command)
//!                                                          └── no ─────▶ Absent (what to install)
//! ```
//!
//! Every subject prints one line of JSON when its work is done. hugeheap's own is this program once more, with
//! the hidden command `bench worker`: a process of its own like the others, that callgrind can run too.

use super::python::{Python, clean};
use crate::descriptors::told;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A program that does the work.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The program and its first arguments.
    pub(crate) command: Vec<OsString>,
    /// Compiled before it runs: its instructions can be counted by callgrind.
    pub(crate) native: bool,
}

/// A program that cannot be had here.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    pub(crate) name: &'static str,
    pub(crate) why: String,
}

/// Either.
pub(crate) type Found = Result<Subject, Absent>;

impl Subject {
    pub(crate) fn new(
        name: &'static str,
        version: impl Into<String>,
        command: &[&OsStr],
        native: bool,
    ) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { name, version: version.into(), command, native }
    }

    /// This program as a worker.
    ///
    /// # Errors
    /// One line when the program cannot be found.
    pub(crate) fn own(work: &str) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("this program has no path: {error}", error = told(&error)))?;
        let words = [program.as_os_str(), "bench".as_ref(), "worker".as_ref(), work.as_ref()];
        Ok(Self::new("hugeheap", env!("CARGO_PKG_VERSION"), &words, true))
    }

    /// A command with more arguments, without settings from the environment.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        self.behind(&[], arguments)
    }

    /// The same, started by another program.
    pub(crate) fn behind<A: AsRef<OsStr>>(
        &self,
        starter: &[&str],
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut words = starter.iter().map(|&word| OsString::from(word)).chain(self.command.iter().cloned());
        let mut command = Command::new(words.next().unwrap_or_default());
        clean(&mut command);
        for name in ["OCAMLRUNPARAM", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYPYLOG", "RUBYOPT"] {
            command.env_remove(name);
        }
        // Boehm's collector.
        let names = std::env::vars_os().map(|(name, _)| name);
        names.filter(|name| name.as_encoded_bytes().starts_with(b"GC_")).for_each(|name| {
            command.env_remove(name);
        });
        command.args(words).args(arguments);
        command
    }

    pub(crate) fn json(&self) -> Value {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        json!({"name": self.name, "version": self.version, "command": words})
    }
}

impl Absent {
    pub(crate) fn new(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, why: why.into() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({"name": self.name, "why": self.why})
    }

    /// A line below a table.
    pub(crate) fn line(&self) -> String {
        format!("  {:<12}{}\n", self.name, self.why)
    }
}

/// What was asked for with `--against`, of all that there is: those found, and those that are not here.
pub(crate) struct Chosen {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) absent: Vec<Absent>,
}

/// Chooses among `known` by `asked` (nothing or `all`: what is found; `none`: nothing); `find` is asked only
/// for what is wanted.
///
/// # Errors
/// One line for an unknown name; the reason when a peer that was named is not here (as `Err(Err(..))`).
pub(crate) fn choose(
    asked: &[String],
    known: &[&'static str],
    mut find: impl FnMut(&'static str) -> Found,
) -> Result<Chosen, Unfit> {
    if let Some(unknown) =
        asked.iter().find(|name| !known.contains(&name.as_str()) && *name != "all" && *name != "none")
    {
        return Err(Unfit::Unknown(format!(
            "--against: there is no peer '{unknown}'; the peers are {}, or all, or none",
            known.join(", ")
        )));
    }
    let mut chosen = Chosen { subjects: Vec::new(), absent: Vec::new() };
    let all = asked.is_empty() || asked.iter().any(|name| name == "all");
    if asked.iter().any(|name| name == "none") {
        return Ok(chosen);
    }
    for &name in known {
        let named = asked.iter().any(|asked| asked == name);
        if !all && !named {
            continue;
        }
        match find(name) {
            Ok(subject) => chosen.subjects.push(subject),
            Err(absent) if named => return Err(Unfit::Missing(format!("--against {name}: {}", absent.why))),
            Err(absent) => chosen.absent.push(absent),
        }
    }
    Ok(chosen)
}

/// Why nothing could be chosen.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// A name that is none.
    Unknown(String),
    /// One that was named and is not here.
    Missing(String),
}

impl From<Unfit> for super::variant::Refusal {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Unknown(why) => Self::Usage(why),
            Unfit::Missing(why) => Self::Unsupported(why),
        }
    }
}

/// A directory with sources and what was compiled of them. Removed when dropped.
pub(crate) struct Workshop {
    directory: TempDir,
}

impl Workshop {
    /// # Errors
    /// One line that says what to do.
    pub(crate) fn new() -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("hugeheap-bench-").tempdir();
        let directory = directory
            .map_err(|error| format!("no temporary directory: {error} (set TMPDIR)", error = told(&error)))?;
        Ok(Self { directory })
    }

    /// Writes a source.
    fn file(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).map_err(|error| {
            format!("{} cannot be written: {error}", path.display(), error = told(&error))
        })?;
        Ok(path)
    }

    /// A C program on Boehm's collector.
    pub(crate) fn boehm(&self, source: &str) -> Found {
        self.boehm_with("boehm", source, &[])
    }

    /// The same with more options of the compiler, under another name.
    pub(crate) fn boehm_with(&self, name: &'static str, source: &str, options: &[&str]) -> Found {
        let absent = |why: String| Absent::new(name, why);
        let compiler =
            on_path("cc").ok_or_else(|| absent("not found: install a C compiler and libgc-dev".into()))?;
        let target = self.directory.path().join(name);
        let path = self.file(&format!("{name}.c"), source).map_err(absent)?;
        let mut words: Vec<&OsStr> = ["-O2"].iter().chain(options).map(AsRef::as_ref).collect();
        words.extend(["-o".as_ref(), target.as_os_str(), path.as_os_str(), "-lgc".as_ref()]);
        built(&compiler, &words, "not found: install libgc-dev").map_err(absent)?;
        let version = Command::new(&target).arg("version").stdin(Stdio::null()).output();
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Ok(Subject::new(name, version.unwrap_or_default(), &[target.as_os_str()], true))
    }

    /// A program in OCaml, compiled to machine code.
    pub(crate) fn ocaml(&self, source: &str) -> Found {
        const NAME: &str = "ocaml";
        let absent = |why: String| Absent::new(NAME, why);
        let compiler = on_path("ocamlopt").ok_or_else(|| absent("not found: install ocaml".into()))?;
        let target = self.directory.path().join("ocaml");
        let path = self.file("program.ml", source).map_err(absent)?;
        let words = ["-O3", "-unsafe", "-inline", "200", "-w", "-a", "-I", "+unix", "unix.cmxa", "-o"];
        let mut words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        words.extend([target.as_os_str(), path.as_os_str()]);
        built(&compiler, &words, "ocamlopt cannot compile here").map_err(absent)?;
        Ok(Subject::new(NAME, said(&compiler, &["-version"]), &[target.as_os_str()], true))
    }

    /// A program in Java with the serial collector; its class is `Program`.
    pub(crate) fn java(&self, source: &str) -> Found {
        const NAME: &str = "java";
        let absent = |why: String| Absent::new(NAME, why);
        let missing = || absent("not found: install default-jdk-headless".into());
        let (compiler, java) = (on_path("javac").ok_or_else(missing)?, on_path("java").ok_or_else(missing)?);
        let path = self.file("Program.java", source).map_err(absent)?;
        let directory = self.directory.path().as_os_str();
        built(&compiler, &["-d".as_ref(), directory, path.as_os_str()], "javac cannot compile here")
            .map_err(absent)?;
        let version = said(&compiler, &["-version"]).replace("javac ", "");
        let words =
            [java.as_os_str(), "-XX:+UseSerialGC".as_ref(), "-cp".as_ref(), directory, "Program".as_ref()];
        Ok(Subject::new(NAME, version, &words, false))
    }

    /// A Python program on CPython.
    pub(crate) fn cpython(&self, source: &str, python: Option<&Path>) -> Found {
        const NAME: &str = "cpython";
        let python = Python::find(python).map_err(|why| Absent::new(NAME, why))?;
        let path = self.file("program.py", source).map_err(|why| Absent::new(NAME, why))?;
        Ok(Subject::new(NAME, python.text.clone(), &[python.path.as_os_str(), path.as_os_str()], false))
    }

    /// A Python program on PyPy, with or without its compiler.
    pub(crate) fn pypy(&self, name: &'static str, source: &str, jit: bool) -> Found {
        let absent = |why: String| Absent::new(name, why);
        let pypy = ["pypy3", "pypy"].into_iter().find_map(on_path);
        let pypy = pypy.ok_or_else(|| absent("not found: install pypy3".into()))?;
        let path = self.file("program.py", source).map_err(absent)?;
        let version =
            said(&pypy, &["-c", "import sys; print('.'.join(map(str, sys.pypy_version_info[:3])))"]);
        let mut words = vec![pypy.as_os_str()];
        if !jit {
            words.extend(["--jit".as_ref(), "off".as_ref()] as [&OsStr; 2]);
        }
        words.push(path.as_os_str());
        Ok(Subject::new(name, version, &words, false))
    }

    /// A program in Ruby.
    pub(crate) fn ruby(&self, source: &str) -> Found {
        const NAME: &str = "ruby";
        let absent = |why: String| Absent::new(NAME, why);
        let ruby = on_path("ruby").ok_or_else(|| absent("not found: install ruby".into()))?;
        let path = self.file("program.rb", source).map_err(absent)?;
        let version = said(&ruby, &["-e", "print RUBY_VERSION"]);
        Ok(Subject::new(NAME, version, &[ruby.as_os_str(), path.as_os_str()], false))
    }
}

/// A program in `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|directory| directory.join(name)).find(|path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

/// Runs a compiler; the reason and its first complaint when it fails.
fn built(compiler: &Path, words: &[&OsStr], why: &str) -> Result<(), String> {
    let output = Command::new(compiler).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("{} could not be started: {error}", compiler.display(), error = told(&error))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error") || line.contains("Error"));
    Err(format!("{why} ({})", first.or_else(|| said.lines().next()).unwrap_or("no message").trim()))
}

/// The first line that a program prints.
fn said(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &'static str) -> Found {
        match name {
            "here" => Ok(Subject::new("here", "1", &["true".as_ref()], true)),
            _ => Err(Absent::new(name, "not found: install it")),
        }
    }

    fn chosen(asked: &[&str]) -> Result<Chosen, Unfit> {
        let asked: Vec<_> = asked.iter().map(|&name| name.to_owned()).collect();
        choose(&asked, &["here", "away"], find)
    }

    #[test]
    fn what_is_named_must_be_there_and_what_is_not_may_miss() {
        let all = chosen(&[]).unwrap();
        assert_eq!((all.subjects.len(), all.absent[0].why.as_str()), (1, "not found: install it"));
        assert_eq!(chosen(&["none"]).unwrap().absent.len(), 0);
        assert_eq!(chosen(&["here"]).unwrap().absent.len(), 0);
        assert!(matches!(chosen(&["away"]), Err(Unfit::Missing(why)) if why.contains("install it")));
        assert!(matches!(chosen(&["else"]), Err(Unfit::Unknown(why)) if why.contains("here, away")));
    }

    #[test]
    fn a_compiler_that_fails_is_quoted() {
        let Some(compiler) = on_path("cc") else {
            eprintln!("no C compiler here: nothing to test");
            return;
        };
        let workshop = Workshop::new().unwrap();
        let path = workshop.file("wrong.c", "int main(void) { return missing; }\n").unwrap();
        let target = workshop.directory.path().join("wrong");
        let words = ["-o".as_ref(), target.as_os_str(), path.as_os_str()];
        let why = built(&compiler, &words, "not found").unwrap_err();
        assert!(why.contains("not found (") && why.contains("missing"), "{why}");
    }
}
