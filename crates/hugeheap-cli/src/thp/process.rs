//! `hugeheap thp set --for`: a command with its own switch.
//!
//! `PR_SET_THP_DISABLE` belongs to the process and is inherited over fork and exec, so setting it here and
//! becoming the command is all there is to do; nothing is left of hugeheap. It needs no privilege, in either
//! direction.

use super::arguments::{SetArguments, Switch};
use crate::change::quoted;
use crate::descriptors::told;
use crate::{Context, exit};
use hugeheap_os::{Facts, ThpDisabled};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

impl Switch {
    /// Arguments 2 and 3 of the call.
    const fn arguments(self) -> (libc::c_ulong, libc::c_ulong) {
        /// `PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18.
        const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
        match self {
            Self::On => (0, 0),
            Self::Advised => (1, EXCEPT_ADVISED),
            Self::Off => (1, 0),
        }
    }

    const fn state(self) -> ThpDisabled {
        match self {
            Self::On => ThpDisabled::No,
            Self::Advised => ThpDisabled::ExceptAdvised,
            Self::Off => ThpDisabled::Completely,
        }
    }

    const fn says(self) -> &'static str {
        match self {
            Self::On => "transparent huge pages as the host allows them",
            Self::Advised => "transparent huge pages only where the program asks for them",
            Self::Off => "no transparent huge pages",
        }
    }
}

/// Sets the switch and becomes the command.
pub(super) fn start(context: &Context, arguments: &SetArguments, switch: Switch) -> u8 {
    let out = &context.out;
    let [name, rest @ ..] = &arguments.command[..] else {
        out.error("--for needs a command after --");
        return exit::USAGE;
    };
    if arguments.dry_run {
        let words: Vec<_> = arguments.command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        let text = format!(
            "would start with {}: {}\ndry run: nothing was started\n",
            switch.says(),
            words.join(" ")
        );
        out.data(&text);
        return exit::OK;
    }
    let (disable, flags) = switch.arguments();
    // SAFETY: the call only changes a flag of this process.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, disable, flags, 0 as libc::c_ulong, 0 as libc::c_ulong)
    };
    // Asked again: what counts is the state, not that the call was accepted.
    if answer != 0 || context.facts.thp_disabled() != Ok(switch.state()) {
        let why = std::io::Error::last_os_error();
        out.error(&match switch {
            Switch::Advised => format!(
                "this kernel cannot leave huge pages on for advised memory alone ({why}; Linux 6.18 and newer can); \
                 use --for off or --for on; nothing was started"
            ),
            _ => format!("the switch of the process could not be set ({why}); nothing was started"),
        });
        return exit::UNSUPPORTED;
    }
    let error = Command::new(name).args(rest).exec();
    out.error(&format!("{} could not be started: {error}", name.to_string_lossy(), error = told(&error)));
    if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE }
}
