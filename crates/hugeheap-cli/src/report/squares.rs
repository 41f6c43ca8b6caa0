//! The map of a process's memory, from the JSON of `hugeheap map`.

use crate::figure::{Content, Figure, Kind, Square, Squares, Stretch, Table};
use crate::map::{State, colour};
use crate::output::bytes;
use serde_json::Value;

/// Squares of one mapping: larger ones show several huge pages as one, in the colour of the most of them.
const MOST: usize = 64 * 64;

pub(super) fn figures(value: &Value) -> Result<Vec<Figure>, String> {
    let unit = value["host"]["huge_page"]
        .as_u64()
        .filter(|unit| *unit > 0)
        .ok_or("it does not tell the size of a huge page")?;
    let mappings = value["mappings"].as_array().ok_or("it has no mappings")?;
    let legend = State::ALL
        .iter()
        .map(|state| Kind { text: state.text().to_owned(), colour: colour(*state).to_owned() });
    let rows: Vec<Stretch> = mappings
        .iter()
        // Smaller ones would be titles without a picture.
        .filter(|mapping| mapping["resident"].as_u64().is_some_and(|resident| resident >= unit))
        .map(|mapping| stretch(mapping, unit))
        .collect();
    let (resident, huge) = (value["resident"].as_u64().unwrap_or(0), value["huge"].as_u64().unwrap_or(0));
    let note = format!(
        "{} resident, {} of it on huge pages; a square is {}",
        bytes(resident),
        bytes(huge),
        bytes(unit)
    );
    let reasons = value["why"].as_object().into_iter().flatten();
    let rows_of_reasons =
        reasons.map(|(why, sum)| vec![why.replace('_', " "), bytes(sum.as_u64().unwrap_or(0))]).collect();
    let table =
        Table { head: vec!["not huge, because".to_owned(), "memory".to_owned()], rows: rows_of_reasons };
    Ok(vec![
        Figure::new("Map of memory", note, Content::Squares(Squares { legend: legend.collect(), rows })),
        Figure::new("Why it is not huge", "", Content::Table(table)),
    ])
}

fn stretch(mapping: &Value, unit: u64) -> Stretch {
    let text = |name: &str| mapping[name].as_str().unwrap_or("");
    let units = mapping["units"].as_array().map_or(&[][..], Vec::as_slice);
    let together = units.len().div_ceil(MOST).max(1);
    let address = |unit: &Value| {
        let start = unit["start"].as_str()?.strip_prefix("0x")?;
        u64::from_str_radix(start, 16).ok()
    };
    let mut squares = Vec::new();
    let mut end = None;
    for some in units.chunks(together) {
        let (first, last) = (address(&some[0]), address(&some[some.len() - 1]));
        if let (Some(end), Some(first)) = (end, first) {
            if first > end {
                squares.push(Square::Gap { gap: format!("{} without anything", bytes(first - end)) });
            }
        }
        end = last.map(|last| last + unit);
        squares.push(square(some, unit));
    }
    let name = if text("name").is_empty() { text("kind") } else { text("name") };
    let size = |name: &str| bytes(mapping[name].as_u64().unwrap_or(0));
    let scaled = match together {
        1 => String::new(),
        _ => format!("; a square is {}", bytes(unit * together as u64)),
    };
    let title =
        format!("{}  {name}: {} in memory, {} huge{scaled}", text("start"), size("resident"), size("huge"));
    Stretch { title, squares }
}

/// Neighbouring units as one square.
fn square(units: &[Value], unit: u64) -> Square {
    let place = |one: &Value| {
        let name = one["state"].as_str().unwrap_or("");
        State::ALL.iter().position(|state| state.name() == name).unwrap_or(State::ALL.len() - 1)
    };
    let mut counts = [0usize; State::ALL.len()];
    for one in units {
        counts[place(one)] += 1;
    }
    let kind = (0..counts.len()).max_by_key(|kind| (counts[*kind], counts.len() - kind)).unwrap_or(0);
    let resident: u64 = units.iter().filter_map(|one| one["resident"].as_u64()).sum();
    let why = units.iter().find_map(|one| one["why"].as_str());
    let why = why.map(|why| format!("; {}", why.replace('_', " "))).unwrap_or_default();
    let text = format!(
        "{}: {}, {} of {} in memory{why}",
        units[0]["start"].as_str().unwrap_or(""),
        State::ALL[kind].text(),
        bytes(resident),
        bytes(unit * units.len() as u64)
    );
    Square::Mark { kind, text }
}
