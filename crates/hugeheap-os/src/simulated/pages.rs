//! The simulated kernel as [`Pages`]: takes the lock, notes the call, lets the model answer.

use super::call::{Call, Outcome};
use super::{Kernel, Pid, State};
use crate::{AddressRange, Advice, Backing, Error, Pages, Protection, Residency, Result};
use core::ffi::CStr;

impl Kernel {
    /// Makes a call: spends its time, lets the model answer, notes it.
    pub(super) fn call<T>(
        &self,
        call: Call,
        range: AddressRange,
        answer: impl FnOnce(&mut State, Pid) -> Outcome<T>,
    ) -> Result<T> {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.clock.spend(call, 1);
        let outcome = answer(state, self.pid);
        let code = outcome.as_ref().err().copied().unwrap_or(0);
        state.record.note(state.clock.now, self.pid, call, range, code);
        outcome.map_err(|code| Error::new(call.name(), code))
    }
}

/// Has the threads of this process pass a barrier: they are real, whatever kernel they think they have. With a
/// fence of the caller alone two of them changed a heap's lists at a time, in one of some hundred runs of a
/// test.
fn pass_barrier() {
    #[cfg(target_os = "linux")]
    if crate::linux::Linux::new().barrier().is_ok() {
        return;
    }
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

impl Pages for Kernel {
    fn reserve(&self, len: usize, align: usize) -> Result<AddressRange> {
        self.call(Call::Reserve, AddressRange::new(0, len), |state, pid| state.reserve(pid, len, align))
    }

    unsafe fn release(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Release, range, |state, pid| state.release(pid, range))
    }

    unsafe fn release_part(&self, range: AddressRange) -> Result<()> {
        self.call(Call::ReleasePart, range, |state, pid| state.release_part(pid, range))
    }

    unsafe fn map(&self, range: AddressRange, backing: Backing) -> Result<()> {
        self.call(Call::Map, range, |state, pid| state.map(pid, range, backing))
    }

    unsafe fn unmap(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Unmap, range, |state, pid| state.unmap(pid, range))
    }

    unsafe fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        self.call(Call::Advise, range, |state, pid| state.advise(pid, range, advice))
    }

    unsafe fn merge(&self, range: AddressRange, allowed: bool) -> Result<()> {
        self.call(Call::Merge, range, |state, pid| state.allow_merging(pid, range, allowed))
    }

    unsafe fn populate(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Populate, range, |state, pid| state.populate(pid, range))
    }

    unsafe fn collapse(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Collapse, range, |state, pid| state.collapse(pid, range))
    }

    unsafe fn split(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Split, range, |state, pid| state.split(pid, range))
    }

    unsafe fn decommit(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Decommit, range, |state, pid| state.decommit(pid, range))
    }

    unsafe fn offer(&self, range: AddressRange) -> Result<()> {
        self.call(Call::Offer, range, |state, pid| state.offer(pid, range))
    }

    unsafe fn protect(&self, range: AddressRange, protection: Protection) -> Result<()> {
        self.call(Call::Protect, range, |state, pid| state.protect(pid, range, protection))
    }

    unsafe fn relocate(&self, from: AddressRange, to: AddressRange) -> Result<()> {
        self.call(Call::Relocate, from, |state, pid| state.relocate(pid, from, to))
    }

    fn name(&self, range: AddressRange, name: &CStr) -> Result<()> {
        self.call(Call::Name, range, |state, pid| state.name(pid, range, name))
    }

    fn barrier(&self) -> Result<()> {
        self.call(Call::Barrier, AddressRange::new(0, 0), |state, _| {
            state.injector.ask(Call::Barrier)?;
            pass_barrier();
            Ok(())
        })
    }

    fn residency(&self, range: AddressRange) -> Result<Residency> {
        self.call(Call::Residency, range, |state, pid| {
            if range.len == 0 {
                return state.injector.ask(Call::Residency).map(|()| Residency::default());
            }
            let index = state.locate(pid, Call::Residency, range, state.physical.geometry.os)?;
            // Nothing is resident in what is only reserved; asking about it is fine.
            state.injector.ask(Call::Residency)?;
            Ok(state.processes[pid].spaces[index].residency(range, &state.physical))
        })
    }

    fn exclusive(&self, range: AddressRange, found: &mut [u64]) -> Result<()> {
        self.call(Call::Exclusive, range, |state, pid| {
            let index = state.locate(pid, Call::Exclusive, range, state.physical.geometry.os)?;
            state.injector.ask(Call::Exclusive)?;
            state.exclusive(pid, index, range, found);
            Ok(())
        })
    }

    fn is_resident(&self, range: AddressRange) -> Result<bool> {
        self.call(Call::IsResident, range, |state, pid| {
            let index = state.locate(pid, Call::IsResident, range, state.physical.geometry.os)?;
            state.injector.ask(Call::IsResident)?;
            let space = &state.processes[pid].spaces[index];
            let resident = space.residency(range, &state.physical).resident == range.len as u64;
            Ok(resident || state.config.seems_resident)
        })
    }
}
