//! What happens around the heap: failures, settings, the host, forks.

use super::{AddressRange, MILLISECOND, Machine, Pass, Policy, Settings, ThpMode};
use hugeheap_os::ThpDisabled;
use hugeheap_os::simulated::Call;

/// The calls that the heap makes and that can fail.
const CALLS: [Call; 17] = [
    Call::Reserve,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::Advise,
    Call::Populate,
    Call::Collapse,
    Call::Split,
    Call::Decommit,
    Call::Relocate,
    Call::Name,
    Call::Residency,
    Call::IsResident,
    Call::Thp,
    Call::ThpDisabled,
    Call::MemoryLimits,
    Call::TotalMemory,
];

impl Machine {
    pub(super) fn inject(&mut self, a: u8, b: u8, c: u8) {
        let call = CALLS[a as usize % CALLS.len()];
        let errors = call.plausible_errors();
        let code = errors[b as usize % errors.len()];
        match c % 4 {
            0 => self.kernel.fail_no_more(),
            1 => self.kernel.fail_next(call, code, u64::from(c >> 2) + 1),
            2 => self.kernel.fail_every(call, u64::from(c >> 2 & 7), code),
            _ => self.kernel.fail_randomly(u64::from(a) << 8 | u64::from(b), u32::from(c)),
        }
    }

    pub(super) fn change_settings(&mut self, a: u8, b: u8) {
        let mut settings = self.heap.settings();
        match a % 4 {
            0 | 1 => settings.policy = Policy::ALL[b as usize % Policy::ALL.len()],
            2 => settings.decay = [1, 10, 100, 1000][b as usize % 4] * MILLISECOND,
            _ => settings.limit = [None, Some(0), Some(16 << 20), Some(64 << 20)][b as usize % 4],
        }
        self.heap.set(Settings { ..settings });
        assert_eq!(self.heap.settings(), settings);
    }

    pub(super) fn change_host(&mut self, a: u8, b: u8) {
        match a % 6 {
            0 => {
                self.kernel.set_pool(u64::from(b % 16));
            }
            1 => {
                let mode = [ThpMode::Always, ThpMode::Madvise, ThpMode::Never][b as usize % 3];
                // Memory may become huge before the heap knows of the mode.
                self.loose = true;
                self.kernel.set_thp_mode(mode);
            }
            2 => {
                let disabled = [ThpDisabled::No, ThpDisabled::Completely, ThpDisabled::ExceptAdvised];
                self.loose = true;
                self.kernel.set_process_thp_disabled(disabled[b as usize % 3]);
            }
            3 => self.kernel.set_free_huge_pages([None, Some(0), Some(3)][b as usize % 3]),
            4 if self.faulty => {
                let limit = (self.kernel.charge() >> 20) + u64::from(b);
                self.kernel.set_cgroup_max((b % 4 != 0).then_some(limit << 20));
            }
            _ => self.kernel.set_compactable_huge_pages(u64::from(b % 8)),
        }
    }

    /// A fork, on the parent's side. A child of the simulated kernel shares the real memory, so what a child makes of
    /// the copies is tested elsewhere.
    pub(super) fn fork(&mut self) {
        // The runtime ends maintenance first.
        if !matches!(self.pass, Pass::None) {
            return;
        }
        let copies = self.heap.before_fork();
        assert!(self.faulty || copies.left == 0);
        let child = self.kernel.fork();
        for (&address, live) in &self.live {
            let _ = child.touch(AddressRange::new(address, live.bytes));
        }
        self.heap.after_fork_in_parent(copies);
        for (&address, live) in &self.live {
            self.touch(AddressRange::new(address, live.bytes));
        }
        child.exit();
    }
}
