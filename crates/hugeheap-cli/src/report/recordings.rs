//! Recordings: memory over time, runs of the same name laid over each other, and box plots of their maxima.

use super::read::Input;
use super::section::Section;
use crate::figure::{Axis, Boxes, Content, Distribution, Figure, Line, Lines, Panel, Table, Unit};
use crate::output::{bytes, counted};
use crate::statistics::{half_spread, median};
use serde_json::Value;

/// What is drawn of a recording, where it is there: its column and title. RSS always; the rest where it is not
/// zero everywhere.
const COLUMNS: [(&str, &str); 8] = [
    ("rss", "RSS"),
    ("charge", "charge"),
    ("pss", "PSS"),
    ("huge", "on huge pages"),
    ("hugetlb", "hugetlb pages"),
    ("stranded", "stranded"),
    ("page_tables", "page tables"),
    ("kernel", "kernel"),
];
/// Maxima that get a box plot: the reference's, and what RSS does not show.
const BOXES: [&str; 2] = ["rss", "charge"];

/// A column that has a value at fewer looks than one in so many has its number told.
const RARE: usize = 5;

/// Names, each with its runs, in the order of first use.
fn groups<'a>(inputs: &[&'a Input]) -> Vec<(&'a str, Vec<&'a Value>)> {
    let mut groups: Vec<(&str, Vec<&Value>)> = Vec::new();
    for input in inputs {
        let name = input.value["name"].as_str().unwrap_or(&input.file);
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(&input.value),
            None => groups.push((name, vec![&input.value])),
        }
    }
    groups
}

/// Points of a column: those looks at which it was looked at.
fn points(recording: &Value, column: &str) -> Vec<(f64, f64)> {
    let samples = &recording["samples"];
    let (Some(times), Some(values)) = (samples["seconds"].as_array(), samples[column].as_array()) else {
        return Vec::new();
    };
    times.iter().zip(values).filter_map(|(time, value)| Some((time.as_f64()?, value.as_f64()?))).collect()
}

/// The largest of a column.
fn most(recording: &Value, column: &str) -> Option<f64> {
    points(recording, column).iter().map(|point| point.1).reduce(f64::max)
}

/// A title with a capital letter: at its beginning these words have a small one in a sentence.
fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A title of one line that is not longer than a legend can be.
fn short(name: &str) -> String {
    const MOST: usize = 60;
    let line = name.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST - 1).chain(['…']).collect() }
}

pub(super) fn section(inputs: &[&Input]) -> Result<Section, String> {
    let groups = groups(inputs);
    let mut figures = Vec::new();
    for (column, title) in COLUMNS {
        let lines: Vec<Line> = groups
            .iter()
            .map(|(name, runs)| Line {
                name: short(name),
                runs: runs.iter().map(|run| points(run, column)).filter(|run| !run.is_empty()).collect(),
                dotted: false,
            })
            .collect();
        let is_there = lines.iter().flat_map(|line| &line.runs).flatten().any(|point| point.1 > 0.0);
        if !is_there {
            continue;
        }
        let runs = lines.iter().map(|line| line.runs.len()).max().unwrap_or(0);
        let note = if runs > 1 { "every run thin; their median, and as a band the middle half" } else { "" };
        figures.push(Figure::new(
            format!("{} over time", capital(title)),
            note,
            Content::Lines(Lines {
                x: Axis { label: String::new(), unit: Unit::Seconds },
                y: Axis { label: String::new(), unit: Unit::Bytes },
                panels: vec![Panel { lines, ..Panel::default() }],
            }),
        ));
        if BOXES.contains(&column) {
            let boxes = groups.iter().map(|(name, runs)| Distribution {
                name: short(name),
                values: runs.iter().filter_map(|run| most(run, column)).collect(),
            });
            let boxes = Content::Boxes(Boxes { unit: Unit::Bytes, boxes: boxes.collect() });
            figures.push(Figure::new(
                format!("Maximum of {title}"),
                "of each run; the number of runs in parentheses",
                boxes,
            ));
        }
    }
    if figures.is_empty() {
        let files: Vec<_> = inputs.iter().map(|input| input.file.as_str()).collect();
        return Err(format!(
            "{}: nothing was recorded, it ended before it could be looked at",
            files.join(", ")
        ));
    }
    figures.push(table(&groups));
    let first = &inputs[0].value;
    let mut reproduce: Vec<String> = Vec::new();
    let mut remarks: Vec<String> = Vec::new();
    for input in inputs {
        if let Some(command) =
            input.value["reproduce"].as_str().filter(|it| !reproduce.iter().any(|had| had == it))
        {
            reproduce.push(command.to_owned());
        }
        if input.value["samples"]["seconds"].as_array().is_none_or(Vec::is_empty) {
            remarks.push(format!("{}: nothing was recorded", input.file));
        }
        if let Some(why) = input.value["charge_unavailable"].as_str() {
            let remark = format!("charge: {why}");
            if !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
        if input.value["ended"].is_null() && input.value.get("ended").is_some() {
            remarks.push(format!(
                "{}: the recording was not ended; this is what there was until then",
                input.file
            ));
        }
    }
    Ok(Section {
        title: "Memory over time".to_owned(),
        files: inputs.iter().map(|input| input.file.clone()).collect(),
        reproduce,
        remarks,
        figures,
        host: first["host"].clone(),
        started: first["started"].as_u64(),
    })
}

/// Maxima as a table.
fn table(groups: &[(&str, Vec<&Value>)]) -> Figure {
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(column, _)| {
            groups.iter().flat_map(|group| &group.1).any(|run| most(run, column).is_some_and(|it| it > 0.0))
        })
        .collect();
    let mut head = vec!["recording".to_owned(), "runs".to_owned()];
    head.extend(columns.iter().map(|column| column.1.to_owned()));
    let rows = groups.iter().map(|(name, runs)| {
        let mut row = vec![short(name), runs.len().to_string()];
        row.extend(columns.iter().map(|(column, _)| {
            let values: Vec<f64> = runs.iter().filter_map(|run| most(run, column)).collect();
            let cell = match (median(&values), half_spread(&values)) {
                (Some(middle), Some(spread)) if values.len() > 1 => {
                    format!("{} ± {}", bytes(middle as u64), bytes(spread as u64))
                }
                (Some(middle), _) => bytes(middle as u64),
                _ => return "–".to_owned(),
            };
            // Of looks that are rare the largest is not the most there was.
            let looks: Vec<_> =
                runs.iter().map(|run| (points(run, column).len(), points(run, "rss").len())).collect();
            match looks.iter().map(|(some, _)| *some).min() {
                Some(few) if looks.iter().any(|(some, all)| some * RARE < *all) => {
                    format!("{cell}\nof {}", counted(few as u64, "look", "looks"))
                }
                _ => cell,
            }
        }));
        row
    });
    let table = Table { head, rows: rows.collect() };
    let note = "median of the runs ± half the middle half; what is costly to look at was looked at now and then only";
    Figure::new("Maxima", note, Content::Table(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(name: &str, rss: [u64; 2]) -> Input {
        let samples = json!({"seconds": [0.0, 1.0], "rss": rss, "charge": [null, null]});
        Input {
            file: format!("{name}.json"),
            value: json!({"name": name, "samples": samples, "reproduce": "r"}),
        }
    }

    #[test]
    fn runs_of_the_same_name_are_one_line_and_one_box() {
        let inputs = [input("glibc", [1, 5]), input("jemalloc", [1, 3]), input("glibc", [1, 7])];
        let section = section(&inputs.iter().collect::<Vec<_>>()).unwrap();
        let titles: Vec<_> = section.figures.iter().map(|figure| figure.title.as_str()).collect();
        assert_eq!(titles, ["RSS over time", "Maximum of RSS", "Maxima"]);
        let Content::Boxes(boxes) = &section.figures[1].content else { panic!("no boxes") };
        assert_eq!(
            (boxes.boxes[0].values.as_slice(), boxes.boxes[1].values.as_slice()),
            (&[5.0, 7.0][..], &[3.0][..])
        );
        assert_eq!(section.reproduce, ["r"]);
    }

    #[test]
    fn maxima_of_rare_looks_say_so() {
        let (mut pss, times) = (vec![json!(null); 12], (0..12).collect::<Vec<_>>());
        pss[7] = json!(4096);
        let samples =
            json!({"seconds": times, "rss": vec![8192; 12], "page_tables": vec![4096; 12], "pss": pss});
        let input = Input { file: "a.json".into(), value: json!({"name": "a", "samples": samples}) };
        let figures = section(&[&input]).unwrap().figures;
        assert!(figures.iter().any(|figure| figure.title == "Page tables over time"));
        let Content::Table(table) = &figures.last().unwrap().content else { panic!("no table") };
        assert_eq!(table.rows[0][2..], ["8.0 KiB", "4.0 KiB\nof 1 look", "4.0 KiB"]);
    }

    #[test]
    fn recordings_without_a_look_are_told() {
        let empty = Input { file: "e.json".into(), value: json!({"samples": {"seconds": [], "rss": []}}) };
        assert!(section(&[&empty]).unwrap_err().contains("e.json: nothing was recorded"));
    }
}
