//! Knobs: the small text files of /proc/sys and /sys that steer huge pages, for those who set them.
//!
//! Terms: a *knob* is one file, named by its absolute path on the running system. Its *value* is the word or
//! the number it is set to. A knob with *choices* shows all of them in one line, the value in brackets:
//! `always [madvise] never`. The *root* is the directory that stands for `/`.
//!
//! Invariants:
//! * Nothing outside the root is written: a path whose links lead out of it is refused (`EXDEV`).
//! * A value that was written is read again, and what the kernel made of it is the answer. The kernel may clamp (a pool
//!   that is half met) without an error.
//!
//! Below another root a knob is often a plain file (a test, a copy of a host). Such a file keeps what was
//! written and no more, so a choice written to it would lose the others and the brackets. It gets the whole
//! line instead, as the kernel would show it.
//!
//! Not part of [`Facts`](crate::Facts): no policy of the library sets a knob, and all of this allocates.

use super::Linux;
use crate::{Error, Result};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const READ: &str = "read(knob)";
const WRITE: &str = "write(knob)";
const LIST: &str = "list(knobs)";

/// What a knob says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The word or number it is set to.
    pub value: String,
    /// What it can be set to, in the kernel's order; empty for a number.
    pub choices: Vec<String>,
}

impl Knob {
    fn parse(text: &str) -> Option<Self> {
        let bracketed = |word: &&str| word.starts_with('[') && word.ends_with(']') && word.len() > 2;
        let words: Vec<_> = text.split_whitespace().collect();
        let bare = |word: &str| word.trim_matches(['[', ']']).to_owned();
        match words.iter().filter(|word| bracketed(word)).count() {
            1 => Some(Self {
                value: words.iter().find(|word| bracketed(word)).map(|word| bare(word))?,
                choices: words.iter().map(|word| bare(word)).collect(),
            }),
            // A number, or one word of a plain file that stands for a knob.
            0 if words.len() == 1 => Some(Self { value: words[0].to_owned(), choices: Vec::new() }),
            _ => None,
        }
    }

    /// The line in which the kernel would show it with `value`.
    fn line(&self, value: &str) -> String {
        let word = |choice: &String| if choice == value { format!("[{choice}]") } else { choice.clone() };
        self.choices.iter().map(word).collect::<Vec<_>>().join(" ") + "\n"
    }
}

/// The knobs below one root.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// Empty for the running system.
    root: PathBuf,
}

impl Linux {
    /// The knobs of the host this looks at. Allocates.
    pub fn knobs(&self) -> Knobs {
        Knobs { root: PathBuf::from(OsStr::from_bytes(self.root.as_bytes())) }
    }
}

impl Knobs {
    /// The directory that stands for `/`; `None` for the running system.
    pub fn root(&self) -> Option<&Path> {
        (!self.root.as_os_str().is_empty()).then_some(&*self.root)
    }

    /// Where `absolute` is below the root.
    pub fn path(&self, absolute: &str) -> PathBuf {
        let mut path = self.root.clone().into_os_string();
        path.push(absolute);
        path.into()
    }

    /// Where `absolute` is below the root, for writing. It need not exist.
    ///
    /// # Errors
    /// `EXDEV` when links lead out of the root.
    pub fn path_inside(&self, absolute: &str) -> Result<PathBuf> {
        let path = self.path(absolute);
        let Some(root) = self.root() else { return Ok(path) };
        let outside = Error::new(WRITE, libc::EXDEV);
        if absolute.split('/').any(|part| part == "..") {
            return Err(outside);
        }
        let root = root.canonicalize().map_err(|error| code_of(&error, WRITE))?;
        // What exists of the path, links followed; a link that leads nowhere exists, too.
        let existing = path.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(&root);
        let real = existing.canonicalize().map_err(|error| code_of(&error, WRITE))?;
        if real.starts_with(&root) { Ok(path) } else { Err(outside) }
    }

    /// The whole text of a file.
    ///
    /// # Errors
    /// `ENOENT` where this kernel does not have it; `EACCES` where it is closed.
    pub fn text(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.path(file)).map_err(|error| code_of(&error, READ))
    }

    /// A knob.
    ///
    /// # Errors
    /// As [`text`](Self::text); `EBADMSG` when it is not understood.
    pub fn read(&self, file: &str) -> Result<Knob> {
        Knob::parse(&self.text(file)?).ok_or(Error::new(READ, libc::EBADMSG))
    }

    /// A knob that is a number.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn number(&self, file: &str) -> Result<u64> {
        self.read(file)?.value.parse().map_err(|_| Error::new(READ, libc::EBADMSG))
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// `ENOENT` where there is none.
    pub fn list(&self, directory: &str) -> Result<Vec<String>> {
        let failed = |error: io::Error| code_of(&error, LIST);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.path(directory)).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Sets a knob, and answers what it says then.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`, `EROFS` without permission; `EINVAL` when the kernel refuses the value; `EXDEV`
    /// outside the root.
    pub fn write(&self, file: &str, value: &str) -> Result<Knob> {
        let path = self.path_inside(file)?;
        let before = self.read(file)?;
        overwrite(&path, value)?;
        let now = self.read(file)?;
        if before.choices.is_empty() || !now.choices.is_empty() {
            return Ok(now);
        }
        overwrite(&path, &before.line(value))?;
        self.read(file)
    }
}

/// Writes to a file that exists, in one call: the kernel takes each write to a knob as a setting of its own.
fn overwrite(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let failed = |error: io::Error| code_of(&error, WRITE);
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

fn code_of(error: &io::Error, call: &'static str) -> Error {
    // Text that is no UTF-8 has no number.
    Error::new(call, error.raw_os_error().unwrap_or(libc::EBADMSG))
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeRoot;
    use super::*;
    use proptest::prelude::*;

    const MODE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

    fn host(text: &str) -> (FakeRoot, Knobs) {
        let fake = FakeRoot::new();
        fake.write(&MODE[1..], text);
        let knobs = Linux::with_root(fake.path()).unwrap().knobs();
        (fake, knobs)
    }

    #[test]
    fn choices_and_numbers_are_told_apart() {
        let (fake, knobs) = host("always [madvise] never\n");
        let knob = knobs.read(MODE).unwrap();
        assert_eq!((knob.value.as_str(), knob.choices.len()), ("madvise", 3));
        fake.write(&MODE[1..], "4096\n");
        assert_eq!(knobs.read(MODE).unwrap(), Knob { value: "4096".into(), choices: Vec::new() });
        assert_eq!(knobs.number(MODE), Ok(4096));
        for text in ["", "a b", "[a] [b]", "[] a b"] {
            fake.write(&MODE[1..], text);
            assert_eq!(knobs.read(MODE).unwrap_err().code, libc::EBADMSG, "{text:?}");
        }
        assert_eq!(knobs.read("/sys/none").unwrap_err().code, libc::ENOENT);
    }

    #[test]
    fn a_plain_file_shows_its_choices_as_the_kernel_would() {
        let (fake, knobs) = host("always [madvise] never\n");
        assert_eq!(knobs.write(MODE, "never").unwrap().value, "never");
        let text = std::fs::read_to_string(fake.path().join(&MODE[1..])).unwrap();
        assert_eq!(text, "always madvise [never]\n");
    }

    #[test]
    fn nothing_outside_the_root_is_written() {
        let (fake, knobs) = host("always [madvise] never\n");
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("enabled"), "always [madvise] never\n").unwrap();
        let directory = fake.path().join("sys/kernel/mm/transparent_hugepage");
        std::fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink(outside.path(), &directory).unwrap();
        assert_eq!(knobs.write(MODE, "never").unwrap_err().code, libc::EXDEV);
        assert_eq!(knobs.path_inside("/sys/../../x").unwrap_err().code, libc::EXDEV);
        assert!(knobs.path_inside("/etc/tmpfiles.d/new.conf").is_ok());
        let text = std::fs::read_to_string(outside.path().join("enabled")).unwrap();
        assert_eq!(text, "always [madvise] never\n");
    }

    #[test]
    fn the_running_system_has_no_root() {
        assert_eq!(Linux::new().knobs().root(), None);
        assert_eq!(Linux::new().knobs().path("/sys/x"), Path::new("/sys/x"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = Knob::parse(&text);
        }
    }
}
