//! A process whose memory is looked at: in a cgroup of its own where one can be made, with hugeheap's telemetry
//! where it has it.

use super::charge::Group;
use super::variant::{Kind, Variant};
use crate::descriptors::told;
use crate::run::{TELEMETRY, records::Records};
use hugeheap::telemetry::Snapshot;
use std::process::Command;

/// What belongs to such a process. To be kept until it has ended.
pub(crate) struct Observed {
    pub(crate) group: Option<Group>,
    records: Option<Records>,
}

impl Observed {
    /// Sees to it that the process of `command`, which runs on `variant`, can be looked at.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn prepare(variant: &Variant, command: &mut Command) -> Result<Self, String> {
        let group = Group::create().ok();
        if let Some(group) = &group {
            group
                .adopt(command)
                .map_err(|error| format!("could not enter its cgroup: {error}", error = told(&error)))?;
        }
        let records = match variant.kind {
            Kind::Hugeheap => Some(Records::new().map_err(|error| told(&error).to_string())?),
            _ => None,
        };
        if let Some(records) = &records {
            command.env(TELEMETRY, records.path());
        }
        Ok(Self { group, records })
    }

    /// What hugeheap told, when the process has ended.
    pub(crate) fn telemetry(&self) -> Option<Snapshot> {
        self.records.as_ref()?.read().snapshots.into_iter().next()
    }
}
