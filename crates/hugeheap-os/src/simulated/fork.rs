//! Processes: fork and exit.
//!
//! After a fork parent and child point to the same folios, and both copy before they write (`cow`). The charge does not
//! change. The child's handle has the same addresses, but only the model of what is behind them: the real memory is the
//! parent's, so a child's calls never change contents, and reservations made by the child are real again.
//!
//! Hugetlb: pages in use are shared too, the promise for the others stays with the parent. See the
//! [module's text](super) for what that means at an empty pool.

use super::table::{Pte, Space, Table};
use super::{Kernel, Pid, Process, State};
use std::sync::Arc;

impl Kernel {
    /// Makes a child of this process. It lives until its handle calls [`exit`](Kernel::exit).
    ///
    /// # Panics
    /// When this process has exited.
    #[must_use = "the child keeps sharing memory until it exits"]
    pub fn fork(&self) -> Kernel {
        let pid = self.lock().fork(self.pid);
        Kernel { shared: Arc::clone(&self.shared), pid }
    }

    /// Ends this process: everything it has goes back to the system. Calls made afterwards are violations.
    pub fn exit(&self) {
        let pid = self.pid;
        self.lock().exit(pid);
    }

    /// The number of this process: 0 for the first, children count up.
    pub fn process(&self) -> usize {
        self.pid
    }
}

impl State {
    fn fork(&mut self, parent: Pid) -> Pid {
        assert!(!self.processes[parent].exited, "a process that has exited cannot fork");
        let child = self.processes.len();
        let State { processes, physical, pools, .. } = self;
        let mut spaces = Vec::new();
        for space in &mut processes[parent].spaces {
            let mut vmas = space.vmas.clone();
            vmas.disown();
            // Pages that are shared now. The model takes less than the kernel, which takes them when neither
            // process has written.
            space.offered.clear();
            let mut copy = Space {
                pid: child,
                id: space.id,
                range: space.range,
                host: None,
                vmas,
                tables: Default::default(),
                offered: Default::default(),
                hugetlb: Default::default(),
            };
            for (&chunk, table) in &mut space.tables {
                let shared = match table {
                    Table::HugeZero => Table::HugeZero,
                    Table::Huge { folio, cow } => {
                        *cow = true;
                        for page in 0..physical.len(*folio) {
                            physical.map(*folio, page, child);
                        }
                        Table::Huge { folio: *folio, cow: true }
                    }
                    Table::Ptes(ptes) => {
                        for pte in ptes.iter_mut() {
                            if let Pte::Page { folio, page, cow } = pte {
                                *cow = true;
                                physical.map(*folio, *page, child);
                            }
                        }
                        Table::Ptes(ptes.clone())
                    }
                };
                copy.tables.insert(chunk, shared);
            }
            for (&address, entry) in &mut space.hugetlb {
                entry.cow = true;
                pools.share(entry.id);
                copy.hugetlb.insert(address, *entry);
            }
            spaces.push(copy);
        }
        let thp_disabled = processes[parent].thp_disabled;
        processes.push(Process { spaces, thp_disabled, exited: false });
        child
    }

    pub(super) fn exit(&mut self, pid: Pid) {
        while let Some(space) = self.processes[pid].spaces.last() {
            let range = space.range;
            let index = self.processes[pid].spaces.len() - 1;
            self.empty(pid, index, range);
            self.processes[pid].spaces.pop();
        }
        self.processes[pid].exited = true;
    }
}
