//! The map as JSON.

use super::picture;
use super::text::mode;
use super::view::{Cell, Row, View};
use crate::figure;
use hugeheap_os::Advice;
use serde_json::{Map, Value, json};

pub(crate) const SCHEMA: &str = "hugeheap.map/1";

/// `all`: small mappings, too, in the figure; the rest has them always.
pub(crate) fn data(view: &View, all: bool) -> Value {
    let reasons = view.reasons().into_iter().map(|(why, bytes)| (why.name().to_owned(), bytes.into()));
    let (resident, huge) = (view.resident(), view.huge());
    json!({
        "schema": SCHEMA,
        "process": {"id": view.id, "name": view.name},
        "host": {"mode": mode(view.mode), "os_page": view.os_page, "huge_page": view.unit},
        "resident": resident,
        "huge": huge,
        "coverage": (resident > 0).then(|| huge as f64 / resident as f64),
        "why": reasons.collect::<Map<String, Value>>(),
        "unseen": view.unseen,
        "huge_known": view.tells_huge,
        "advice_known": view.advice_known,
        "broken_known": view.broken_known,
        "elapsed_seconds": view.elapsed.as_secs_f64(),
        "mappings": view.rows.iter().map(|row| mapping(row, view.os_page)).collect::<Vec<_>>(),
        figure::KEY: [picture::figure(view, all)],
    })
}

fn mapping(row: &Row, os_page: usize) -> Value {
    let mapping = &row.mapping;
    let bytes = |pages: u64| pages * os_page as u64;
    json!({
        "start": format!("{:#x}", mapping.range.start),
        "bytes": mapping.range.len,
        "kind": mapping.kind.name(),
        "name": mapping.name,
        "writable": mapping.writable,
        "advice": row.advice.map(|advice| match advice {
            Some(Advice::Huge) => "huge",
            Some(Advice::NoHuge) => "no_huge",
            None => "none",
        }),
        "resident": bytes(row.pages(|cell| cell.unit.resident())),
        "huge": bytes(row.pages(|cell| cell.unit.huge)),
        "units": row.cells.iter().map(|cell| unit(cell, os_page)).collect::<Vec<_>>(),
    })
}

fn unit(cell: &Cell, os_page: usize) -> Value {
    let it = cell.unit;
    json!({
        "start": format!("{:#x}", it.range.start),
        "state": cell.state.name(),
        "resident": u64::from(it.resident()) * os_page as u64,
        "zero": u64::from(it.zero) * os_page as u64,
        "swapped": u64::from(it.swapped) * os_page as u64,
        "why": cell.why.map(super::why::Why::name),
    })
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{HUGE, view};
    use super::*;
    use crate::map::view::State;
    use hugeheap_os::AddressRange;
    use hugeheap_os::process::Unit;

    #[test]
    fn sizes_are_bytes() {
        let value = data(&view(), false);
        let of = |name: &str| {
            let mappings = value["mappings"].as_array().unwrap().iter();
            mappings.map(|mapping| mapping[name].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of("bytes").iter().sum::<u64>(), 300 * HUGE as u64);
        // A mapping's sums are of huge pages, too.
        assert_eq!(value["mappings"][0]["resident"], HUGE as u64 + 4096);
        assert_eq!(of("resident").iter().sum::<u64>(), value["resident"].as_u64().unwrap());
        assert_eq!(of("huge").iter().sum::<u64>(), HUGE as u64);
        let it = Unit { range: AddressRange::new(0, HUGE), small: 1, huge: 0, zero: 2, swapped: 3 };
        let unit = unit(&Cell { unit: it, state: State::Sparse, why: None }, 4096);
        assert_eq!(
            [&unit["resident"], &unit["zero"], &unit["swapped"]],
            [&Value::from(4096), &Value::from(8192), &Value::from(12288)]
        );
    }

    #[test]
    fn sums_are_those_of_the_units() {
        let value = data(&view(), false);
        assert_eq!(value["schema"], SCHEMA);
        let units = value["mappings"].as_array().unwrap().iter();
        let sum: u64 = units
            .flat_map(|mapping| mapping["units"].as_array().unwrap())
            .map(|unit| unit["resident"].as_u64().unwrap())
            .sum();
        assert_eq!(value["resident"], sum);
        assert_eq!(value["huge"], HUGE as u64);
        assert_eq!(value["why"]["broken"], 4096);
        assert_eq!(value["mappings"][0]["advice"], "huge");
        assert_eq!(value["mappings"][0]["units"][1]["why"], "broken");
    }
}
