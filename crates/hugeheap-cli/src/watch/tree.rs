//! Which processes are watched: one, and those it starts.
//!
//! A process that was seen once belongs to the tree until it ends, also when the one that started it has ended
//! (a daemon) and it got another parent. A number that is given to another process is noticed by the time of
//! its start. What a command started and left within one look is found among this process's own children, when
//! [`adopt_orphans`] was called: the kernel hands them to us.

use super::source;
use std::collections::BTreeMap;
use std::fs;

/// The processes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: u32,
    with_children: bool,
    /// Whether this process's children belong to it, too.
    with_own: bool,
    /// By number: when it was started.
    known: BTreeMap<u32, u64>,
}

/// From now on processes whose parent ends become children of this one. To be called before anything is started.
pub(crate) fn adopt_orphans() {
    // SAFETY: a system call with numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

impl Tree {
    /// The process `root`, and those it starts where `with_children`.
    pub(crate) fn new(root: u32, with_children: bool) -> Self {
        let known = source::started(root).map(|started| (root, started)).into_iter().collect();
        Self { root, with_children, with_own: false, known }
    }

    /// Those that were left to this process (see [`adopt_orphans`]) belong to it, too: it started nothing else.
    pub(crate) fn with_orphans(mut self) -> Self {
        self.with_own = self.with_children;
        self
    }

    /// Those of the processes that are there.
    pub(crate) fn living(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.known.keys().copied()
    }

    /// The processes that are there, and perhaps some that have ended, with the times of their start.
    pub(crate) fn known(&self) -> impl Iterator<Item = (u32, u64)> + use<'_> {
        self.known.iter().map(|(id, started)| (*id, *started))
    }

    /// Looks who was started and who has ended.
    pub(crate) fn find(&mut self) {
        if !self.with_children {
            return;
        }
        self.known.retain(|id, started| source::started(*id) == Some(*started));
        let mut open: Vec<u32> = self.known.keys().copied().collect();
        if self.with_own {
            open.push(std::process::id());
        }
        while let Some(id) = open.pop() {
            for child in children(id) {
                if self.known.contains_key(&child) {
                    continue;
                }
                if let Some(started) = source::started(child) {
                    self.known.insert(child, started);
                    open.push(child);
                }
            }
        }
    }

    /// How many others than the first are there now.
    pub(crate) fn others_now(&self) -> usize {
        let lives = |(id, started): &(&u32, &u64)| **id != self.root && source::runs(**id, **started);
        self.known.iter().filter(lives).count()
    }
}

/// The children of a process, of all its threads.
pub(crate) fn children(id: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn children_of_children_belong_to_it() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'sleep 600 & echo started; wait' & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        let mut alone = Tree::new(shell.id(), false);
        alone.find();
        assert_eq!(alone.living().collect::<Vec<_>>(), [shell.id()]);
        let mut tree = Tree::new(shell.id(), true);
        tree.find();
        assert_eq!((tree.living().count(), tree.others_now()), (3, 2));
        // Its end does not end those it started: they stay known.
        shell.kill().unwrap();
        shell.wait().unwrap();
        tree.find();
        assert_eq!(tree.living().count(), 2);
        for id in tree.living() {
            // SAFETY: a signal to a process that this test started.
            unsafe { libc::kill(id as libc::pid_t, libc::SIGKILL) };
        }
    }
}
