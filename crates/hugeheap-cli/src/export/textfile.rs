//! Metrics in a file for node_exporter's textfile collector.
//!
//! The file is written under another name, brought to the disk, and renamed: a reader, and a host that loses
//! power, finds the old one or the new one. A name that does not end in `.prom` is not read by the collector.

use super::arguments::{ExportArguments, Format};
use crate::descriptors::told;
use crate::file;
use crate::{Context, exit};
use core::time::Duration;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io, thread};

const NAME: &str = "hugeheap.prom";

/// The collector runs as a user of its own.
const MODE: u32 = 0o644;

pub(super) fn export(context: &Context, arguments: &ExportArguments, directory: &Path) -> u8 {
    let out = &context.out;
    if let Err(code) = once(context, arguments, directory) {
        return code;
    }
    out.detail(&format!("{} is written", directory.join(NAME).display()));
    let Some(seconds) = arguments.every else { return exit::OK };
    super::serve::end_when_told();
    loop {
        thread::sleep(Duration::from_secs_f64(seconds));
        // What failed once may work again: a full disk is emptied. The collector sees by the file's time that
        // it is old.
        let _ = once(context, arguments, directory);
    }
}

/// Writes the file, or says why not and answers the exit code.
fn once(context: &Context, arguments: &ExportArguments, directory: &Path) -> Result<(), u8> {
    let text = super::metrics(context, arguments, Format::Prometheus)
        .map_err(|error| super::not_looked(context, error))?;
    write(directory, &text).map_err(|error| {
        let place = directory.display();
        let (why, code) = match error.kind() {
            ErrorKind::NotFound => (
                format!(
                    "{place} is not there: make it, or name node_exporter's --collector.textfile.directory"
                ),
                exit::USAGE,
            ),
            ErrorKind::NotADirectory => (format!("{place} is not a directory"), exit::USAGE),
            ErrorKind::PermissionDenied => (format!("{place} may not be written"), exit::PERMISSION),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (format!("no space is left in {place}; the file that is there stays"), exit::UNSUPPORTED)
            }
            ErrorKind::ReadOnlyFilesystem => {
                (format!("{place} is on a read-only file system"), exit::PERMISSION)
            }
            _ => (format!("{place} cannot be written: {error}", error = told(&error)), exit::UNSUPPORTED),
        };
        context.out.error(&why);
        code
    })
}

fn write(directory: &Path, text: &str) -> io::Result<()> {
    // Removed again on every way out but the last.
    let mut file = file::named_in(directory, ".hugeheap-")?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(MODE))?;
    file.as_file().sync_all()?;
    file.persist(directory.join(NAME)).map_err(|error| error.error)?;
    Ok(())
}
