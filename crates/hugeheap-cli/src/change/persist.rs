//! Keeping a knob over a boot: one line in a file that the system reads when it starts.
//!
//! | what | file | read by |
//! |---|---|---|
//! | a sysctl: the pool of the default size | `/etc/sysctl.d/90-hugeheap-pool.conf` | `systemd-sysctl`, `sysctl --system` |
//! | a file of /sys: THP, other pools, nodes | `/etc/tmpfiles.d/hugeheap-*.conf` | `systemd-tmpfiles-setup`, before any service |
//!
//! tmpfiles.d and not a unit: one line per knob that says what it does, early, without an order to keep,
//! nothing to enable, nothing that can be left running; taking it back is deleting the line. A kernel without
//! the file is passed over silently there, as it should be. The kernel's command line would be earlier still,
//! but belongs to the boot loader.
//!
//! The files hold only such lines. An edit keeps what others it holds, and replaces a line for the same knob.

use hugeheap_os::linux::Knobs;
use hugeheap_os::{Error, Result};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Programs that read the files; none: the setting would wait for nobody.
const TMPFILES_READERS: [&str; 3] =
    ["/usr/bin/systemd-tmpfiles", "/bin/systemd-tmpfiles", "/usr/lib/systemd/systemd"];
const SYSCTL_READERS: [&str; 4] =
    ["/usr/lib/systemd/systemd-sysctl", "/lib/systemd/systemd-sysctl", "/sbin/sysctl", "/usr/sbin/sysctl"];

/// Which kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Sysctl,
    Tmpfiles,
}

impl Form {
    /// What a line begins with that sets `knob`; the value follows.
    fn key(self, knob: &str) -> String {
        match self {
            Self::Sysctl => format!("{knob} = "),
            Self::Tmpfiles => format!("w {knob} - - - - "),
        }
    }

    fn header(self) -> &'static str {
        match self {
            Self::Sysctl => "# Written by 'hugeheap pool --persist'. Read at boot (sysctl --system).\n",
            Self::Tmpfiles => {
                "# Written by 'hugeheap --persist'. Read at boot (systemd-tmpfiles --create).\n"
            }
        }
    }

    /// A warning when nothing on the host reads the file at boot.
    pub(crate) fn reader_missing(self, knobs: &Knobs) -> Option<&'static str> {
        let (readers, warning): (&[_], _) = match self {
            Self::Sysctl => {
                (&SYSCTL_READERS, "no sysctl and no systemd found: nothing may read /etc/sysctl.d at boot")
            }
            Self::Tmpfiles => {
                (&TMPFILES_READERS, "no systemd-tmpfiles found: nothing may read /etc/tmpfiles.d at boot")
            }
        };
        let found = readers.iter().any(|reader| knobs.path(reader).exists());
        (!found).then_some(warning)
    }
}

/// What becomes of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Below the root.
    pub(crate) path: PathBuf,
    /// `None`: there is no such file yet.
    before: Option<String>,
    after: String,
    /// The lines that are set.
    lines: Vec<String>,
    /// How each changed line is taken back, as an expression of sed.
    back: Vec<String>,
}

impl Edit {
    /// The edit of `file` (from `/`) that sets `settings`: knob and value.
    ///
    /// # Errors
    /// `EXDEV` outside the root; what reading the file answers.
    pub(crate) fn plan(knobs: &Knobs, file: &str, form: Form, settings: &[(String, String)]) -> Result<Self> {
        let path = knobs.path_inside(file)?;
        let before = match knobs.text(file) {
            Ok(text) => Some(text),
            Err(error) if error.code == libc::ENOENT => None,
            Err(error) => return Err(error),
        };
        let mut lines: Vec<String> =
            before.as_deref().unwrap_or(form.header()).lines().map(str::to_owned).collect();
        let (mut set, mut back) = (Vec::new(), Vec::new());
        for (knob, value) in settings {
            let key = form.key(knob);
            let line = format!("{key}{value}");
            match lines.iter_mut().find(|line| line.starts_with(&key)) {
                Some(found) if *found == line => {}
                Some(found) => {
                    back.push(format!("s|^{}.*|{found}|", pattern(&key)));
                    found.clone_from(&line);
                }
                None => {
                    back.push(format!("\\|^{}|d", pattern(&key)));
                    lines.push(line.clone());
                }
            }
            set.push(line);
        }
        let after = lines.join("\n") + "\n";
        Ok(Self { path, before, after, lines: set, back })
    }

    /// Whether the file does not say it already.
    pub(crate) fn is_needed(&self) -> bool {
        self.before.as_ref() != Some(&self.after)
    }

    /// Writes the file whole: whoever reads it meanwhile sees the old one or the new one.
    ///
    /// # Errors
    /// What making the directory or the file answers.
    pub(crate) fn write(&self) -> Result<()> {
        if !self.is_needed() {
            return Ok(());
        }
        self.replace().map_err(|error| Error::new("write(file)", error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn replace(&self) -> std::io::Result<()> {
        let directory = self.path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(directory)?;
        let file = crate::file::new_in(directory)?;
        file.as_file().write_all(self.after.as_bytes())?;
        // Settings of the host are for everyone to read.
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.persist(&self.path)?;
        Ok(())
    }

    /// The command line that takes the edit back.
    pub(crate) fn undo(&self) -> Option<String> {
        if !self.is_needed() {
            return None;
        }
        let path = super::quoted(&self.path.display().to_string());
        Some(match self.before {
            None => format!("rm {path}"),
            Some(_) => format!("sed -i {} {path}", super::quoted(&self.back.join("; "))),
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({"file": self.path, "lines": self.lines})
    }
}

/// A key as a basic regular expression.
fn pattern(key: &str) -> String {
    key.replace('.', "\\.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::linux::Linux;
    use std::process::Command;

    const FILE: &str = "/etc/tmpfiles.d/hugeheap-thp.conf";

    fn plan(root: &std::path::Path, value: &str) -> Edit {
        let knobs = Linux::with_root(root).unwrap().knobs();
        Edit::plan(&knobs, FILE, Form::Tmpfiles, &[("/sys/x.y/enabled".into(), value.into())]).unwrap()
    }

    fn run(command: &str) {
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    }

    #[test]
    fn lines_are_added_replaced_and_taken_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(&FILE[1..]);
        let first = plan(root.path(), "always");
        first.write().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# ") && text.ends_with("\nw /sys/x.y/enabled - - - - always\n"), "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!plan(root.path(), "always").is_needed());
        assert_eq!(plan(root.path(), "always").undo(), None);

        let second = plan(root.path(), "never");
        second.write().unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with(" never\n"));
        run(&second.undo().unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        run(&first.undo().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn lines_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(&FILE[1..]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "w /sys/other - - - - 1\n").unwrap();
        let edit = plan(root.path(), "never");
        edit.write().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "w /sys/other - - - - 1\nw /sys/x.y/enabled - - - - never\n");
        run(&edit.undo().unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "w /sys/other - - - - 1\n");
    }
}
