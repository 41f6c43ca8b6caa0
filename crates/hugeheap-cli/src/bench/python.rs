//! Finding the interpreter to measure, and handing it a program.
//!
//! `python3` in PATH is often not an interpreter: pyenv and others put a shell script there, whose start would
//! be measured too. So each candidate is asked what it really runs, and that is used.

use crate::descriptors::told;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a candidate is asked. Free-threaded builds keep their objects outside arenas.
const QUESTION: &str = "\
import sys, sysconfig, json
print(json.dumps({'executable': sys.executable, 'implementation': sys.implementation.name,
'version': list(sys.version_info[:3]), 'text': sys.version.split()[0],
'free_threaded': bool(sysconfig.get_config_var('Py_GIL_DISABLED')),
'compiler': sys.version.split('[')[-1].rstrip(']'),
'options': sysconfig.get_config_var('CONFIG_ARGS') or ''}))";

/// A program in a file of its own. Removed when dropped.
pub(crate) struct Script {
    _directory: TempDir,
    pub(crate) path: PathBuf,
}

impl Script {
    /// Writes `text` to a file.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let write = || {
            let directory = tempfile::Builder::new().prefix("hugeheap-bench-").tempdir()?;
            let path = directory.path().join("workloads.py");
            std::fs::write(&path, text)?;
            Ok(Self { _directory: directory, path })
        };
        write().map_err(|error: std::io::Error| {
            format!("no temporary directory: {error} (set TMPDIR)", error = told(&error))
        })
    }
}

/// An interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    /// The program itself.
    pub(crate) path: PathBuf,
    pub(crate) version: [u64; 3],
    pub(crate) text: String,
    pub(crate) free_threaded: bool,
    facts: Value,
}

impl Python {
    /// The interpreter `chosen`, or the first CPython in PATH.
    ///
    /// # Errors
    /// One line with what was tried.
    pub(crate) fn find(chosen: Option<&Path>) -> Result<Self, String> {
        if let Some(path) = chosen {
            return Self::ask(path).map_err(|why| format!("--python {}: {why}", path.display()));
        }
        let search = std::env::var_os("PATH").unwrap_or_default();
        let mut tried = Vec::new();
        for name in ["python3", "python"] {
            for path in std::env::split_paths(&search).map(|directory| directory.join(name)) {
                let executable = path
                    .metadata()
                    .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
                if !executable {
                    continue;
                }
                match Self::ask(&path) {
                    Ok(python) => return Ok(python),
                    Err(why) => tried.push(format!("{}: {why}", path.display())),
                }
            }
        }
        Err(match tried.is_empty() {
            true => "no python3 in PATH; name one with --python".to_owned(),
            false => format!("no CPython in PATH ({}); name one with --python", tried.join("; ")),
        })
    }

    /// What `path` really runs.
    pub(crate) fn ask(path: &Path) -> Result<Self, String> {
        let mut command = Command::new(path);
        clean(&mut command);
        let output = command
            .args(["-c", QUESTION])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| told(&error).to_string())?;
        let facts: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("does not answer as Python does ({})", said.lines().next().unwrap_or("no message"))
        })?;
        if facts["implementation"] != "cpython" {
            return Err(format!("is {}, not CPython", facts["implementation"]));
        }
        let part = |index: usize| facts["version"][index].as_u64().unwrap_or(0);
        Ok(Self {
            path: facts["executable"].as_str().map_or_else(|| path.to_path_buf(), PathBuf::from),
            version: [part(0), part(1), part(2)],
            text: facts["text"].as_str().unwrap_or_default().to_owned(),
            free_threaded: facts["free_threaded"].as_bool().unwrap_or(false),
            facts,
        })
    }

    /// Whether it was configured with `option`.
    pub(crate) fn configured(&self, option: &str) -> bool {
        self.facts["options"].as_str().is_some_and(|options| options.contains(option))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "path": self.path,
            "version": self.text,
            "compiler": self.facts["compiler"],
            "options": self.facts["options"],
            "free_threaded": self.free_threaded,
        })
    }
}

/// Removes from a command's environment what would make variants differ in more than their allocator.
pub(crate) fn clean(command: &mut Command) {
    const PREFIXES: [&str; 6] = ["PYTHON", "HUGEHEAP_", "MIMALLOC_", "MALLOC_", "TCMALLOC_", "GLIBC_"];
    for (name, _) in std::env::vars_os() {
        if disturbs(&name, &PREFIXES) {
            command.env_remove(name);
        }
    }
    command.env_remove(crate::run::PRELOAD);
    // Not random: dictionaries have the same layout in every run. No files beside the workload.
    command.env("PYTHONHASHSEED", "0").env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONNOUSERSITE", "1");
}

fn disturbs(name: &OsString, prefixes: &[&str]) -> bool {
    name.to_str().is_some_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_python_is_a_program_not_a_wrapper() {
        let Ok(python) = Python::find(None) else {
            eprintln!("no CPython here: nothing to test");
            return;
        };
        let start = std::fs::read(&python.path).unwrap();
        assert_eq!(&start[..4], b"\x7fELF");
        assert_eq!(python.version[0], 3);
        assert!(python.json()["version"].as_str().unwrap().starts_with("3."));
    }

    #[test]
    fn what_is_no_python_is_refused_with_its_answer() {
        let error = Python::find(Some(Path::new("/bin/echo"))).unwrap_err();
        assert!(error.contains("/bin/echo"), "{error}");
        assert!(Python::ask(Path::new("/no/such/python")).is_err());
    }

    #[test]
    fn disturbing_variables_are_known() {
        assert!(disturbs(&"PYTHONMALLOC".into(), &["PYTHON"]));
        assert!(!disturbs(&"PATH".into(), &["PYTHON"]));
    }
}
