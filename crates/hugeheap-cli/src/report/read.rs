//! Files of measurements: what they are, told by their schema or by their first line.

use crate::descriptors::told;
use crate::{exit, record};
use serde_json::{Value, json};
use std::fs::File;
use std::io::ErrorKind::{Interrupted, PermissionDenied};
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a file, at most: a recording of ten samples a second for eleven days, with a hundred bytes to a sample.
const LONGEST: usize = 1 << 30;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// A file that was understood.
pub(super) struct Input {
    /// Its name without the directories.
    pub(super) file: String,
    pub(super) value: Value,
}

impl Input {
    pub(super) fn schema(&self) -> &str {
        self.value["schema"].as_str().unwrap_or("")
    }
}

/// Reads a file.
///
/// # Errors
/// One line, and the exit code: a file that may not be read is none that is mistyped.
pub(super) fn read(path: &Path) -> Result<Input, (String, u8)> {
    let shown = path.display();
    let text = File::open(path).and_then(|file| text_of(file, LONGEST)).map_err(|error| {
        let code = if error.kind() == PermissionDenied { exit::PERMISSION } else { exit::USAGE };
        (format!("{shown} cannot be read: {error}", error = told(&error)), code)
    })?;
    let text = text.map_err(|why| (format!("{shown} {why}"), exit::USAGE))?;
    understood(path, text).map_err(|why| (why, exit::USAGE))
}

/// What a file has, or why it is no measurement. A device or a pipe may have no end: what no text has is the
/// end of it, and so is [`LONGEST`].
fn text_of(mut file: impl Read, longest: usize) -> io::Result<Result<Vec<u8>, String>> {
    let (mut text, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(Ok(text)),
            Ok(len) if chunk[..len].contains(&0) => return Ok(Err("is no text".to_owned())),
            Ok(len) if text.len() + len > longest => {
                return Ok(Err(format!("has more than {} MiB, and no measurement has", longest >> 20)));
            }
            Ok(len) => text.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn understood(path: &Path, text: Vec<u8>) -> Result<Input, String> {
    let shown = path.display();
    let text = String::from_utf8(text).map_err(|_| format!("{shown} is no text"))?;
    let file = path.file_name().map_or_else(|| shown.to_string(), |name| name.to_string_lossy().into_owned());
    if text.trim().is_empty() {
        return Err(format!("{shown} is empty: its measurement has not ended, or was not written"));
    }
    if text.starts_with("time\trss") {
        let value = table(&text, &file).map_err(|why| format!("{shown}: {why}"))?;
        return Ok(Input { file, value });
    }
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        format!("{shown} is neither JSON of hugeheap nor a table of 'hugeheap record': {error}")
    })?;
    match value["schema"].as_str() {
        Some(schema) if schema.starts_with("hugeheap.") => Ok(Input { file, value }),
        _ => Err(format!("{shown} is JSON of something else: it has no schema of hugeheap's")),
    }
}

/// A table of samples as a recording. Its name is that of the file without a number at the end: `glibc_12.tsv`
/// is a run of `glibc`.
fn table(text: &str, file: &str) -> Result<Value, String> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or("").split('\t').collect();
    let mut columns: Vec<Vec<Value>> = vec![Vec::new(); head.len()];
    for (number, line) in lines.enumerate() {
        let cells: Vec<&str> = line.split('\t').collect();
        // The last line of a recording that is going on, or was cut off, may not be whole.
        if cells.len() != head.len() {
            continue;
        }
        for (column, cell) in columns.iter_mut().zip(cells) {
            let value = match cell {
                "" => Value::Null,
                _ => cell
                    .parse::<u64>()
                    .map(Value::from)
                    .map_err(|_| format!("line {}: '{cell}' is no whole number", number + 2))?,
            };
            column.push(value);
        }
    }
    let mut samples = serde_json::Map::new();
    for (name, column) in head.iter().zip(columns) {
        if *name == "time" {
            let seconds =
                column.iter().map(|time| time.as_f64().map_or(Value::Null, |time| json!(time / 1e9)));
            samples.insert("seconds".to_owned(), seconds.collect());
        } else {
            samples.insert((*name).to_owned(), column.into());
        }
    }
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let name =
        stem.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches(['_', '-', '.']);
    let name = if name.is_empty() { stem } else { name };
    Ok(json!({"schema": record::SCHEMA, "name": name, "samples": samples}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_recordings_named_by_their_file() {
        let value = table("time\trss\tkernel\n0\t10\t5\n1500000000\t20\t\n9", "glibc-branch_12.tsv").unwrap();
        assert_eq!(value["name"], "glibc-branch");
        assert_eq!(value["samples"]["seconds"], json!([0.0, 1.5]));
        assert_eq!(value["samples"]["kernel"], json!([5, null]));
        assert!(table("time\trss\nx\t1\n", "a.tsv").unwrap_err().contains("line 2: 'x'"));
        assert_eq!(table("time\trss\n", "12.tsv").unwrap()["name"], "12");
    }

    #[test]
    fn a_file_has_an_end_by_length_or_where_it_is_no_text() {
        let endless = io::repeat(b'1');
        assert_eq!(
            text_of(endless, 3 << 20).unwrap(),
            Err("has more than 3 MiB, and no measurement has".into())
        );
        assert_eq!(text_of(&[b'1'; 3 << 20][..], 3 << 20).unwrap().unwrap().len(), 3 << 20);
        assert_eq!(text_of(io::repeat(0), usize::MAX).unwrap(), Err("is no text".into()));
    }
}
