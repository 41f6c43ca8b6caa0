//! A command that is to be started: which program it is, and which interpreter.
//!
//! The command is not run. An interpreter is asked for its version, because nothing in its file tells reliably:
//! it runs one line of ours, isolated (`-I -S`, `--disable-all`), without the user's code.

use crate::descriptors::told;
use crate::file;
use crate::run::elf;
use crate::run::target::{NoTarget, Target};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// What a Python is asked.
const QUESTION: &str = "import sys, sysconfig, json; print(json.dumps([sys.executable, sys.implementation.name, \
list(sys.version_info[:3]), bool(sysconfig.get_config_var('Py_GIL_DISABLED')), \
'--with-pymalloc-hugepages' in (sysconfig.get_config_var('CONFIG_ARGS') or '')]))";
/// What a Ruby is asked: its version, and whether it has transparent huge pages at run time.
const RUBY_QUESTION: &str =
    "print RUBY_VERSION, ' ', File.read('/proc/self/status')[/^THP_enabled:\\s*(\\d)/, 1].to_s";

/// An interpreter starts within a tenth of a second, on a busy host within one; what is called like one and
/// does not answer is none.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether it has answered: short beside the start of an interpreter.
const POLL: Duration = Duration::from_millis(5);

/// Longest answer that is read, in bytes: ten times what an interpreter says.
const ANSWER_MAX: u64 = 4096;

/// A resolved command.
#[derive(Clone, Debug)]
pub(crate) struct TargetFacts {
    /// As it was typed.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// Why the library cannot be loaded: JSON name and text.
    pub(crate) hindrance: Option<(&'static str, String)>,
    /// The shell or tool that runs the script, when the program is no interpreter we know.
    pub(crate) wrapper: Option<String>,
    pub(crate) runtime: Runtime,
    /// `PYTHONMALLOC` here.
    pub(crate) allocator: Option<String>,
    /// Whether `PYTHON_PYMALLOC_HUGEPAGES` is set here to something but 0.
    pub(crate) asks_huge_pages: bool,
}

/// What runs the user's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Python {
        implementation: String,
        version: [u64; 3],
        free_threaded: bool,
        own_huge_pages: bool,
    },
    Ruby {
        version: String,
        thp: Option<bool>,
    },
    /// Called like an interpreter that is known, and did not say what it is: why.
    Silent(String),
    Unknown,
}

impl Runtime {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Python { implementation, version: [major, minor, micro], free_threaded, .. } => {
                let name = if implementation == "cpython" { "CPython" } else { implementation };
                let threads = if *free_threaded { ", free-threaded" } else { "" };
                format!("{name} {major}.{minor}.{micro}{threads}")
            }
            Self::Ruby { version, .. } => format!("Ruby {version}"),
            Self::Silent(why) => format!("it did not say what it is: {why}"),
            Self::Unknown => "no interpreter that hugeheap knows".to_owned(),
        }
    }
}

impl TargetFacts {
    /// # Errors
    /// When there is no such command.
    pub(crate) fn gather(name: &OsStr) -> Result<Self, NoTarget> {
        let target = Target::resolve(name)?;
        // The library is built with the command: their machine is the same.
        let machine = elf::read(Path::new("/proc/self/exe")).ok().flatten().map(|elf| elf.machine);
        let hindrance = machine.and_then(|machine| target.hindrance(machine));
        let runtime = match (target.interpreter(&["python", "pypy"]), target.interpreter(&["ruby"])) {
            (Some(interpreter), _) => python(interpreter),
            (None, Some(interpreter)) => ruby(interpreter),
            (None, None) => Runtime::Unknown,
        };
        let is_known = !matches!(runtime, Runtime::Unknown | Runtime::Silent(_));
        let wrapper = if !is_known { target.wrapper().map(|name| name.to_string()) } else { None };
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            hindrance: hindrance.map(|hindrance| (hindrance.name(), hindrance.to_string())),
            wrapper,
            runtime,
            program: target.program,
            allocator: std::env::var("PYTHONMALLOC").ok().filter(|value| !value.is_empty()),
            asks_huge_pages: std::env::var("PYTHON_PYMALLOC_HUGEPAGES")
                .is_ok_and(|value| !matches!(value.as_str(), "" | "0")),
        })
    }
}

/// What a program printed, or why it did not.
fn answer(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    // What is set for the interpreter must not keep it from answering.
    for variable in ["PYTHONMALLOC", "PYTHONHOME", "PYTHONPATH", "RUBYOPT", "RUBYLIB", crate::run::PRELOAD] {
        command.env_remove(variable);
    }
    let failed = |error: io::Error| told(&error).to_string();
    // A file and not a pipe: a pipe fills up, and a child that outlives its parent holds it open.
    let mut said = file::new_in(&std::env::temp_dir()).map(NamedTempFile::into_file).map_err(|error| {
        format!("no temporary file for its answer: {error} (set TMPDIR)", error = told(&error))
    })?;
    let output = said.try_clone().map_err(failed)?;
    command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if start.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(POLL),
        }
    };
    if !status.success() {
        return Err(status.to_string());
    }
    let mut text = String::new();
    said.rewind().map_err(failed)?;
    said.take(ANSWER_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

fn python(interpreter: &Path) -> Runtime {
    let said = answer(interpreter, &["-I", "-S", "-c", QUESTION]).and_then(|text| {
        serde_json::from_str(&text).map_err(|_| "its answer is no interpreter's".to_owned())
    });
    let said: Value = match said {
        Ok(said) => said,
        Err(why) => return Runtime::Silent(why),
    };
    let number = |index: usize| said[2][index].as_u64().unwrap_or(0);
    Runtime::Python {
        implementation: said[1].as_str().unwrap_or_default().to_owned(),
        version: [number(0), number(1), number(2)],
        free_threaded: said[3] == true,
        own_huge_pages: said[4] == true,
    }
}

fn ruby(program: &Path) -> Runtime {
    let said = match answer(program, &["--disable-all", "-e", RUBY_QUESTION]) {
        Ok(said) => said,
        Err(why) => return Runtime::Silent(why),
    };
    let (version, thp) = said.split_once(' ').unwrap_or((&said, ""));
    let thp = match thp {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    Runtime::Ruby { version: version.to_owned(), thp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_told_from_programs_with_similar_names() {
        let target = |path: &str, program: &str| Target {
            path: path.into(),
            scripts: Vec::new(),
            program: program.into(),
            elf: None,
        };
        let python = &["python", "pypy"];
        let shim = target("/shims/python3.12", "/bin/bash");
        assert_eq!(shim.interpreter(python), Some(Path::new("/shims/python3.12")));
        let script = target("/usr/bin/pytest", "/usr/bin/python3.13t");
        assert_eq!(script.interpreter(python), Some(Path::new("/usr/bin/python3.13t")));
        for name in ["/bin/python-app", "/bin/python3-config", "/bin/sh"] {
            assert_eq!(target(name, name).interpreter(python), None, "{name}");
        }
        assert_eq!(
            target("/bin/ruby3.1", "/bin/ruby3.1").interpreter(&["ruby"]),
            Some(Path::new("/bin/ruby3.1"))
        );
    }
}
