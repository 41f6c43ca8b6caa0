//! The files of a recording, written so that what was recorded is kept whatever ends it.
//!
//! A table grows by a row with each look. When a row cannot be written (the disk is full), the file is cut
//! after the last whole one and the recording goes on without it. A JSON document is whole or nothing: it is
//! written anew beside the file and takes its place, first after a second and then each time the recording has
//! become twice as long. So the last one that found room stays.

use super::data::Recording;
use crate::descriptors::told;
use crate::file::{refused, replace};
use crate::watch::Sample;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The columns. The first three are those of the tool that the measurements of Ruby's heap pages were made with
/// (mstat): nanoseconds, bytes, bytes of the kernel's own for the processes, here their page tables.
const COLUMNS: &str =
    "time\trss\tkernel\tpss\thuge\thugetlb\tstranded\tcharge\tminor_faults\tmajor_faults\tprocesses\n";

/// A table of tab-separated values.
struct Rows {
    path: PathBuf,
    file: File,
    /// Bytes of whole rows.
    whole: u64,
}

/// Where a recording goes.
pub(super) struct Files {
    rows: Vec<Rows>,
    documents: Vec<PathBuf>,
    /// When the documents are written next, in nanoseconds of the recording.
    next: u64,
    /// What could not be written, and why.
    pub(super) failures: Vec<String>,
}

/// Documents are written first after this, in nanoseconds.
const FIRST: u64 = 1_000_000_000;

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

impl Files {
    /// Opens the files, so that nothing is started that cannot be recorded.
    ///
    /// # Errors
    /// One line, and the exit code.
    pub(super) fn create(paths: &[PathBuf]) -> Result<Self, (String, u8)> {
        let mut files = Self { rows: Vec::new(), documents: Vec::new(), next: FIRST, failures: Vec::new() };
        for path in paths {
            let refused = |error: io::Error| {
                (
                    format!("{} cannot be written: {error}", path.display(), error = told(&error)),
                    refused(&error),
                )
            };
            let file = if is_document(path) {
                File::options().create(true).append(true).open(path)
            } else {
                File::create(path)
            };
            let file = file.map_err(refused)?;
            if is_document(path) {
                files.documents.push(path.clone());
                continue;
            }
            let mut rows = Rows { path: path.clone(), file, whole: 0 };
            rows.write(COLUMNS).map_err(refused)?;
            files.rows.push(rows);
        }
        Ok(files)
    }

    /// Whether the samples are needed again.
    pub(super) fn keeps(&self) -> bool {
        !self.documents.is_empty()
    }

    /// Writes a look's row.
    pub(super) fn sample(&mut self, sample: &Sample) {
        let text = row(sample);
        let failures = &mut self.failures;
        self.rows.retain_mut(|rows| match rows.write(&text) {
            Ok(()) => true,
            Err(error) => {
                failures.push(format!(
                    "{} could not be written any more: {error}; what was recorded in the first {:.1} s is in it",
                    rows.path.display(),
                    sample.time as f64 / 1e9,
                    error = told(&error)
                ));
                false
            }
        });
    }

    /// Whether documents are due.
    pub(super) fn due(&self, time: u64) -> bool {
        self.keeps() && time >= self.next
    }

    /// Writes the documents.
    pub(super) fn documents(&mut self, recording: &Recording<'_>) {
        let text = format!("{}\n", recording.json());
        self.next = recording.time().max(FIRST) * 2;
        for path in &self.documents {
            if let Err(error) = replace(path, &text) {
                // Tried again later, and told once: the error names a temporary file, which is another each time.
                let failure = format!("{} could not be written: ", path.display());
                if !self.failures.iter().any(|told| told.starts_with(&failure)) {
                    self.failures.push(format!("{failure}{}", cause(&error)));
                }
            }
        }
    }
}

impl Rows {
    fn write(&mut self, text: &str) -> io::Result<()> {
        let written = self.file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.whole += text.len() as u64,
            // A pipe cannot be cut; nothing of it is kept anyway.
            Err(_) => drop(self.file.set_len(self.whole)),
        }
        written
    }
}

/// Why, without the temporary file it was about: that says nothing to the reader.
fn cause(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => told(&io::Error::from_raw_os_error(code)).to_string(),
        None => error.kind().to_string(),
    }
}

fn row(sample: &Sample) -> String {
    let cell = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let mut text = format!("{}\t{}\t{}", sample.time, sample.rss, sample.page_tables);
    let cells = [sample.pss, sample.huge, Some(sample.hugetlb), sample.stranded, sample.charge];
    for value in cells {
        let _ = write!(text, "\t{}", cell(value));
    }
    let _ = writeln!(text, "\t{}\t{}\t{}", sample.minor_faults, sample.major_faults, sample.processes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let text = row(&Sample { time: 5, rss: 4096, charge: Some(7), processes: 1, ..Sample::default() });
        assert_eq!(text, "5\t4096\t0\t\t\t0\t\t7\t0\t0\t1\n");
        let faults = row(&Sample { minor_faults: 8, major_faults: 9, ..Sample::default() });
        assert!(
            faults.ends_with("\t8\t9\t0\n")
                && COLUMNS.trim_end().ends_with("minor_faults\tmajor_faults\tprocesses")
        );
        assert_eq!(COLUMNS.split('\t').count(), text.split('\t').count());
        assert!(COLUMNS.starts_with("time\trss\tkernel\t"));
    }

    #[test]
    fn a_full_disk_is_told_once() {
        // The header is refused there already.
        let refused = Files::create(&["/dev/full".into()]).err().unwrap();
        assert!(refused.0.starts_with("/dev/full cannot be written: "), "{}", refused.0);
        assert_eq!(refused.1, crate::exit::UNSUPPORTED);
    }
}
