//! Whether the leader of this process has ended while other threads live: the thread whose number is the
//! process's. The kernel keeps it as a zombie until the last one has ended.

use super::Linux;
use super::read::File;

/// Bytes of `/proc/self/stat` in which the state lies: a number of at most seven digits and a name of at most
/// 64 bytes are before it.
const BEGINNING: usize = 128;

impl Linux {
    /// Whether the leader has ended. False also where nobody can tell.
    pub fn leader_has_ended(&self) -> bool {
        let mut text = [0; BEGINNING];
        let read = self.root.at(&[b"/proc/self/stat"], |path| {
            File::open(path, "read(/proc/self/stat)")?.read_at(&mut text, 0)
        });
        read.is_ok_and(|count| matches!(state(&text[..count]), Some(b'Z' | b'X')))
    }
}

/// The letter behind the name, which is in parentheses and may contain some.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_behind_the_name_whatever_that_is() {
        assert_eq!(state(b"12 (sh) S 1 12 12 0 -1 4194304"), Some(b'S'));
        assert_eq!(state(b"12 (a) Z (b) Z 1 12 12 0 -1 4227084"), Some(b'Z'));
        assert_eq!(state(b"12 (a) Z (b) R 1 12 12 0 -1 4227084"), Some(b'R'));
        assert_eq!(state(b"12 (sh)"), None);
        assert_eq!(state(b""), None);
    }

    #[test]
    fn the_leader_of_this_process_lives() {
        assert!(!Linux::new().leader_has_ended());
    }

    #[test]
    fn a_leader_of_which_nobody_can_tell_has_not_ended() {
        let nowhere = Linux::with_root(std::path::Path::new("/proc/self/fd")).unwrap();
        assert!(!nowhere.leader_has_ended());
    }
}
