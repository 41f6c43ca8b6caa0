//! What a page consists of: a section for each measurement; recordings together are one.

use super::read::Input;
use super::recordings;
use crate::figure::{self, Figure};
use crate::record;
use serde_json::Value;

/// A part of the page.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: String,
    /// Files it comes from.
    pub(super) files: Vec<String>,
    /// Commands that make it again.
    pub(super) reproduce: Vec<String>,
    /// What should be known before it is believed.
    pub(super) remarks: Vec<String>,
    pub(super) figures: Vec<Figure>,
    pub(super) host: Value,
    /// Seconds since 1970.
    pub(super) started: Option<u64>,
}

/// The sections, in the order of the files; all recordings are where the first of them is.
///
/// # Errors
/// One line for the first file of which nothing can be shown.
pub(super) fn sections(inputs: &[Input]) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    let recorded: Vec<&Input> = inputs.iter().filter(|input| input.schema() == record::SCHEMA).collect();
    let mut has_recordings = false;
    for input in inputs {
        if input.schema() == record::SCHEMA {
            if !has_recordings {
                sections.push(recordings::section(&recorded)?);
            }
            has_recordings = true;
            continue;
        }
        let figures = figures(input).map_err(|why| format!("{}: {why}", input.file))?;
        sections.push(of(input, title(input), figures));
    }
    Ok(sections)
}

/// The figures that a measurement brings along.
fn figures(input: &Input) -> Result<Vec<Figure>, String> {
    let value = &input.value;
    if let Some(own) = value.get(figure::KEY) {
        return serde_json::from_value(own.clone()).map_err(|error| {
            format!("its figures are not understood: {error}; was it made by a newer hugeheap?")
        });
    }
    let schema = input.schema();
    Err(format!(
        "nothing of schema {schema} can be drawn: it has no figures; stat, record, map, tlb and bench have"
    ))
}

fn title(input: &Input) -> String {
    let value = &input.value;
    match input.schema() {
        "hugeheap.stat/1" => "Commands compared".to_owned(),
        "hugeheap.tlb/1" => "Misses of the TLB, computed".to_owned(),
        "hugeheap.map/1" => {
            let process = &value["process"];
            format!("Memory of {} ({})", process["name"].as_str().unwrap_or("a process"), process["id"])
        }
        other => {
            let name = other.trim_start_matches("hugeheap.").split('/').next().unwrap_or(other);
            name.replace("bench.", "bench ")
        }
    }
}

/// A section of one file.
fn of(input: &Input, title: String, figures: Vec<Figure>) -> Section {
    let value = &input.value;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let mut remarks: Vec<String> =
        [("counters_unavailable", "hardware counters"), ("charge_unavailable", "charge")]
            .iter()
            .filter_map(|(key, what)| Some(format!("{what}: {}", text(key)?)))
            .collect();
    if value["quick"] == true {
        remarks.push("a first look (--quick): too few runs for conclusions".to_owned());
    }
    if let Some(signal) = value["interrupted_by_signal"].as_i64() {
        remarks.push(format!("interrupted by signal {signal}: less than was planned"));
    }
    for command in value["commands"].as_array().into_iter().flatten() {
        if let Some(why) = command["failure"].as_str() {
            remarks.push(format!("{} failed: {why}", command["name"].as_str().unwrap_or("a command")));
        }
    }
    let made_by = || {
        let name = input.schema().strip_prefix("hugeheap.bench.")?.split('/').next()?;
        Some(format!("hugeheap bench {name}"))
    };
    Section {
        title,
        files: vec![input.file.clone()],
        reproduce: text("reproduce").or_else(made_by).into_iter().collect(),
        remarks,
        figures,
        host: value["host"].clone(),
        started: value["started"].as_u64(),
    }
}
