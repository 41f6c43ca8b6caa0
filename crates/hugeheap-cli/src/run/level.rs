//! The level a command is started at.
//!
//! ```text
//!   --level or HUGEHEAP_LEVEL ─▶ that one; a line where nothing of the command would come from hugeheap
//!   neither, a Ruby           ─▶ malloc: the only level that has anything of a Ruby's
//!   neither                   ─▶ arenas
//! ```
//!
//! A Ruby is told by its name, of the command or of the program that a script names: `ruby`, `ruby3.1`, `rails`
//! through its first line, `env NAME=value ruby`. What a shell starts cannot be told; the summary says what to
//! type.

use super::target::Target;
use hugeheap::telemetry::Level;
use std::ffi::OsString;

/// A level, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) level: Level,
    /// Whether the command is a Ruby and nobody named a level.
    pub(super) is_for_ruby: bool,
    /// Whether the command is a Ruby, of which nothing comes from hugeheap at this level.
    pub(super) is_idle: bool,
}

/// The level of `command`, whose first word is `target`, when `asked` was said.
pub(super) fn choose(asked: Option<Level>, target: Option<&Target>, command: &[OsString]) -> Chosen {
    let is_ruby = target.is_some_and(|target| {
        target.interpreter(&["ruby"]).is_some()
            || target.behind_env(command).is_some_and(|behind| behind.interpreter(&["ruby"]).is_some())
    });
    let usual = if is_ruby { Level::Malloc } else { Level::Arenas };
    let level = asked.unwrap_or(usual);
    Chosen { level, is_for_ruby: is_ruby && asked.is_none(), is_idle: is_ruby && level != Level::Malloc }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_ruby_is_started_where_hugeheap_has_something_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        for name in ["ruby3.1", "rubyist", "python3"] {
            fs::copy("/proc/self/exe", place.join(name)).unwrap();
        }
        let script = |name: &str, line: &str| {
            fs::write(place.join(name), line).unwrap();
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script("puma", &format!("#!{}\n", place.join("ruby3.1").display()));
        // A version manager's.
        script("ruby", "#!/bin/sh\n");
        let of = |asked, words: &[&str]| {
            let full = |word: &&str| match word.strip_prefix('@') {
                Some(name) => OsString::from(place.join(name)),
                None => OsString::from(word),
            };
            let command: Vec<_> = words.iter().map(full).collect();
            let target = Target::resolve(&command[0]).unwrap();
            let chosen = choose(asked, Some(&target), &command);
            (chosen.level, chosen.is_for_ruby, chosen.is_idle)
        };
        for words in [
            &["@ruby3.1", "app.rb"][..],
            &["@puma"],
            &["@ruby", "app.rb"],
            &["env", "RAILS_ENV=production", "@ruby3.1", "app.rb"],
            &["env", "-u", "HOME", "@puma"],
        ] {
            assert_eq!(of(None, words), (Level::Malloc, true, false), "{words:?}");
            assert_eq!(of(Some(Level::Malloc), words), (Level::Malloc, false, false), "{words:?}");
            assert_eq!(of(Some(Level::Objects), words), (Level::Objects, false, true), "{words:?}");
        }
        for words in [
            &["@rubyist"][..],
            &["@python3", "app.py"],
            &["env"],
            &["env", "@python3"],
            &["sh", "-c", "ruby"],
        ] {
            assert_eq!(of(None, words), (Level::Arenas, false, false), "{words:?}");
        }
        assert_eq!(choose(None, None, &["no such command".into()]).level, Level::Arenas);
    }
}
