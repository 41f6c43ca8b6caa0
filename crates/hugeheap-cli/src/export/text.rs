//! Metrics as text: OpenMetrics, and Prometheus's own format, which differs from it in the comments only.

use super::arguments::Format;
use super::metric::{Found, Kind, Metric, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::{self, Write};
use std::sync::Arc;

impl Format {
    /// What HTTP calls it.
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes everything that was found.
pub(super) fn write(found: Arc<Found>, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(found));
    let mut written = String::new();
    // Writing to a String does not fail.
    let _ = text::encode(&mut written, &registry);
    match format {
        Format::Openmetrics => written,
        Format::Prometheus => prometheus(&written),
    }
}

impl Collector for Found {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (metric, samples) in self.all() {
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            let kind = match metric.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for (labels, value) in samples {
                if labels.is_empty() {
                    sample(&mut family, metric, value)?;
                } else {
                    sample(&mut family.encode_family(&labels.as_slice())?, metric, value)?;
                }
            }
        }
        Ok(())
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, metric: &Metric, value: &Value) -> Result<(), fmt::Error> {
    match (metric.kind, value) {
        (Kind::Gauge, Value::Count(count)) => encoder.encode_gauge(count),
        (Kind::Gauge, Value::Share(share)) => encoder.encode_gauge(share),
        (Kind::Counter, Value::Count(count)) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
        (Kind::Counter, Value::Share(share)) => encoder.encode_counter::<NoLabelSet, _, u64>(share, None),
        (Kind::Histogram, Value::Sizes(sum, sizes)) => {
            let count = sizes.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, sizes, None)
        }
        // The catalogue says what is what.
        _ => Err(fmt::Error),
    }
}

/// Prometheus's format from OpenMetrics: a counter is called by the name of its samples, there are no units and
/// there is no end mark.
fn prometheus(openmetrics: &str) -> String {
    let mut written = String::with_capacity(openmetrics.len());
    // The help of a metric stands before its type, in which it is told whether it is a counter.
    let mut help = None;
    for line in openmetrics.lines() {
        if line.starts_with("# HELP ") {
            help = Some(line);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let end = if kind == "counter" { "_total" } else { "" };
            let text = help.take().and_then(|line| line.strip_prefix("# HELP ")?.strip_prefix(name));
            // Writing to a String does not fail.
            let _ = writeln!(written, "# HELP {name}{end}{}\n# TYPE {name}{end} {kind}", text.unwrap_or(""));
        } else if !line.starts_with('#') {
            written.push_str(line);
            written.push('\n');
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::super::metric::{HEAP_COVERAGE, HEAP_GC_PAUSE_LENGTH, HEAP_GIVEN_BACK, HOST_MEMORY};
    use super::*;

    fn found() -> Found {
        let mut found = Found::new();
        found.add(&HOST_MEMORY, &[], 1u64 << 40);
        found.add(&HEAP_COVERAGE, &[("name", "a \"b\"\\\n")], 0.25);
        found.add(&HEAP_GIVEN_BACK, &[("pid", "7"), ("name", "x")], 12u64);
        let sizes = vec![(0.25, 2), (0.5, 0), (f64::INFINITY, 1)];
        found.add(&HEAP_GC_PAUSE_LENGTH, &[("pid", "7")], Value::Sizes(1.5, sizes));
        found
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let text = write(Arc::new(found()), Format::Openmetrics);
        assert!(text.contains("\n# TYPE hugeheap_heap_given_back_bytes counter\n"), "{text}");
        assert!(text.contains("# UNIT hugeheap_heap_given_back_bytes bytes\n"));
        assert!(text.contains("hugeheap_heap_given_back_bytes_total{pid=\"7\",name=\"x\"} 12\n"));
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn prometheus_names_counters_by_their_samples() {
        let text = write(Arc::new(found()), Format::Prometheus);
        assert!(text.contains("\nhugeheap_host_memory_bytes 1099511627776\n"), "{text}");
        assert!(text.contains(
            "# TYPE hugeheap_heap_given_back_bytes_total counter\nhugeheap_heap_given_back_bytes_total{"
        ));
        assert!(text.contains("# HELP hugeheap_heap_given_back_bytes_total Memory given back"));
        assert!(text.contains("hugeheap_heap_coverage_ratio{name=\"a \\\"b\\\"\\\\\\n\"} 0.25\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
        let name = "hugeheap_heap_gc_pause_length_seconds";
        for line in [
            format!("# TYPE {name} histogram"),
            format!("{name}_sum{{pid=\"7\"}} 1.5"),
            format!("{name}_count{{pid=\"7\"}} 3"),
            format!("{name}_bucket{{le=\"0.25\",pid=\"7\"}} 2"),
            format!("{name}_bucket{{le=\"0.5\",pid=\"7\"}} 2"),
            format!("{name}_bucket{{le=\"+Inf\",pid=\"7\"}} 3"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
        }
    }
}
