//! Figures: what a report draws and tabulates, as data that every JSON report can carry.
//!
//! An experiment knows what its figures mean; `hugeheap report` only knows how figures look. So an experiment
//! puts them into its JSON under [`KEY`], and the report needs no knowledge of the experiment:
//!
//! ```text
//!   results ──▶ [Figure] ──▶ JSON  "figures": [ {"title", "note", "kind": "lines", …}, … ]
//!                  │
//!                  └───────▶ svg   one picture   (report, --plots, --plot)
//! ```
//!
//! ```ignore
//! report[figure::KEY] = json!([
//!     Figure::new("Maximum of 50 runs", "", Content::Boxes(Boxes {
//!         unit: Unit::Bytes,
//!         boxes: vec![Distribution { name: "glibc".into(), values: peaks }],
//!     })),
//! ]);
//! ```
//!
//! Values are raw, in the unit's base (bytes, seconds, a share of one), so that the JSON can be computed with;
//! only a table has text, because its cells are for people. Order is that of the picture: the first is what the
//! others are compared with.
//!
//! | kind | for |
//! |---|---|
//! | `table` | anything with rows |
//! | `lines` | something over time: a panel for each variant or one for all, runs overlaid, their median and middle half |
//! | `bars` | values with confidence intervals, in groups |
//! | `boxes` | one value of many runs: median, middle half, extremes |
//! | `squares` | a map of memory: a square for each huge page |

mod area;
mod bars;
mod boxes;
mod lines;
mod palette;
mod scale;
mod squares;
pub(crate) mod svg;

pub(crate) use palette::restyled;

use serde::{Deserialize, Serialize};

/// The key of a report's JSON under which its figures are: an array of [`Figure`].
pub(crate) const KEY: &str = "figures";

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// A sentence below the title: how it was measured, what to look for. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// What is in a figure.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Content {
    Table(Table),
    Lines(Lines),
    Bars(Bars),
    Boxes(Boxes),
    Squares(Squares),
}

/// What a value is of: decides ticks and labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Bytes,
    Seconds,
    /// Of one; shown in percent.
    Share,
    /// To a reference; 1 is the same.
    Ratio,
    BytesPerSecond,
    /// A count, or anything the axis' label names.
    #[default]
    Number,
}

/// Rows of text. Cells may have several lines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Table {
    /// The first column names the row.
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// What an axis shows.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Axis {
    /// May be empty where the unit says it all.
    #[serde(default)]
    pub(crate) label: String,
    pub(crate) unit: Unit,
}

/// Lines over a common axis; panels have the same axes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Lines {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) panels: Vec<Panel>,
}

/// One plot of [`Lines`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Panel {
    /// Empty for a panel that is alone.
    #[serde(default)]
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<Mark>,
}

/// One line, or one for each of several runs, drawn thin with their median and middle half.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Runs; points of each by rising x.
    pub(crate) runs: Vec<Vec<(f64, f64)>>,
    /// For what a line of the same panel is to be compared with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dotted: bool,
}

/// A moment on the x axis, with a short text.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) text: String,
}

/// Bars with confidence intervals.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Bars {
    pub(crate) unit: Unit,
    /// Where a line is drawn to compare with: 1 for ratios. Bars begin there; at 0 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<f64>,
    pub(crate) groups: Vec<Group>,
}

/// Bars of one workload or metric.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

/// One value and the interval it lies in.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Bar {
    /// The same name has the same colour in all groups.
    pub(crate) name: String,
    pub(crate) value: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) high: Option<f64>,
    /// Whether it differs from the reference for sure; `false` is drawn pale, absent was not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) significant: Option<bool>,
}

/// One value of many runs, side by side.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Boxes {
    pub(crate) unit: Unit,
    pub(crate) boxes: Vec<Distribution>,
}

/// The runs of one box.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Distribution {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

/// A map of memory in squares.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Squares {
    /// What a colour means, in the order of the legend.
    pub(crate) legend: Vec<Kind>,
    /// Lines of text between the legend and the map.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) said: Vec<String>,
    pub(crate) rows: Vec<Stretch>,
}

/// What a square can be.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Kind {
    pub(crate) text: String,
    /// `#0b6e4f`.
    pub(crate) colour: String,
}

/// A stretch of memory: a title and its squares.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Stretch {
    pub(crate) title: String,
    pub(crate) squares: Vec<Square>,
}

/// A square, or a gap of memory in which there is nothing.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Square {
    Mark {
        /// Place in the legend.
        kind: usize,
        /// Under the pointer.
        text: String,
    },
    /// What is said of a gap.
    Gap { gap: String },
}

impl Lines {
    /// Values of `unit` over seconds.
    pub(crate) fn over_time(unit: Unit, label: &str, panels: Vec<Panel>) -> Self {
        let x = Axis { label: String::new(), unit: Unit::Seconds };
        Self { x, y: Axis { label: label.to_owned(), unit }, panels }
    }
}

impl Figure {
    pub(crate) fn new(title: impl Into<String>, note: impl Into<String>, content: Content) -> Self {
        Self { title: title.into(), note: note.into(), content }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// One figure of each kind.
    pub(crate) fn samples() -> Vec<Figure> {
        let mib = f64::from(1 << 20);
        let run = |shift: f64| {
            (0..40).map(|at| (f64::from(at) * 0.1 + shift, (f64::from(at) + shift * 9.0) * mib)).collect()
        };
        let line = |name: &str, shift: f64| Line {
            name: name.into(),
            runs: (0..5).map(|number| run(shift + 0.05 * f64::from(number))).collect(),
            dotted: false,
        };
        let bar = |name: &str, value: f64, significant| Bar {
            name: name.into(),
            value,
            low: Some(value * 0.97),
            high: Some(value * 1.02),
            significant: Some(significant),
        };
        let group = |name: &str, shift: f64| Group {
            name: name.into(),
            bars: vec![bar("auto", 0.8 + shift, true), bar("thp & more", 1.01, false)],
        };
        let spread = |name: &str, middle: f64| Distribution {
            name: name.into(),
            values: (0..20)
                .map(|run| (middle + f64::from(run % 7) + f64::from(run / 19) * 20.0) * mib)
                .collect(),
        };
        let square = |kind, text: &str| Square::Mark { kind, text: text.into() };
        vec![
            Figure::new(
                "A table",
                "",
                Content::Table(Table {
                    head: vec!["workload".into(), "auto".into()],
                    rows: vec![vec!["<tuples>".into(), "−20 %".into()]],
                }),
            ),
            Figure::new(
                "Memory <over> time",
                "five runs each",
                Content::Lines(Lines {
                    x: Axis { label: String::new(), unit: Unit::Seconds },
                    y: Axis { label: "RSS".into(), unit: Unit::Bytes },
                    panels: vec![Panel {
                        title: String::new(),
                        lines: vec![line("glibc", 0.0), line("jemalloc", 0.7)],
                        marks: vec![Mark { at: 1.0, text: "free".into() }],
                    }],
                }),
            ),
            Figure::new(
                "Time",
                "",
                Content::Bars(Bars {
                    unit: Unit::Ratio,
                    reference: Some(1.0),
                    groups: vec![group("list_of_tuples", 0.0), group("dict_churn", 0.1)],
                }),
            ),
            Figure::new(
                "Maximum of 20 runs",
                "",
                Content::Boxes(Boxes {
                    unit: Unit::Bytes,
                    boxes: vec![spread("glibc", 60.0), spread("jemalloc", 50.0)],
                }),
            ),
            Figure::new(
                "Map",
                "",
                Content::Squares(Squares {
                    legend: vec![
                        Kind { text: "huge page".into(), colour: "#0b6e4f".into() },
                        Kind { text: "part of a huge page".into(), colour: "#d1495b".into() },
                    ],
                    said: vec!["4.0 KiB not huge: <edge>".into()],
                    rows: vec![Stretch {
                        title: "7f00  800 MiB".into(),
                        squares: vec![
                            square(0, "a & b"),
                            Square::Gap { gap: "384 MiB without anything".into() },
                            square(1, "c"),
                        ],
                    }],
                }),
            ),
        ]
    }

    #[test]
    fn figures_come_back_from_json_as_they_were() {
        for figure in samples() {
            let value = json!(figure);
            assert_eq!(serde_json::from_value::<Figure>(value.clone()).unwrap(), figure, "{value}");
        }
    }

    #[test]
    fn the_form_is_the_documented_one() {
        let value = json!(samples()[3]);
        assert_eq!((&value["kind"], &value["unit"]), (&json!("boxes"), &json!("bytes")));
        assert!(value["boxes"][0]["values"].is_array() && value.get("note").is_none());
        let value = json!(samples()[4]);
        assert_eq!(value["rows"][0]["squares"][1], json!({"gap": "384 MiB without anything"}));
    }
}
