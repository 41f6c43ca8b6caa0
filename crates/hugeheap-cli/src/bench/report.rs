//! What every experiment does before and after it measures: files it will write, free memory touched, tables
//! and JSON handed out.

use super::goal::Goal;
use super::page_reporting::PageReporting;
use super::python::Python;
use super::series::{self, Experiment, Series};
use super::variant::{Refusal, Variant};
use super::{interrupt, touch};
use crate::cli::{ReportArguments, Touch};
use crate::descriptors::told;
use crate::figure::{self, Figure};
use crate::output::{Output, seconds};
use crate::statistics::Estimate;
use crate::{Context, exit, file as files, host, reproduce};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Enough for the largest workload.
const QUICK_TOUCH: u64 = 1 << 30;

/// What was not measured but belongs into the report.
pub(crate) struct Circumstances {
    pub(crate) host: Value,
    pub(crate) python: Value,
    pub(crate) touched: u64,
    /// The command line.
    pub(crate) reproduce: String,
    pub(crate) quick: bool,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

impl Circumstances {
    /// Those of an experiment without an interpreter: says what it runs on and touches free memory.
    pub(crate) fn without_python(context: &Context, arguments: &ReportArguments) -> Self {
        interrupt::watch();
        let host = host::facts(&context.facts);
        context.out.progress(&host::line(&host), true);
        Self::new(context, arguments, host, Value::Null)
    }

    fn new(context: &Context, arguments: &ReportArguments, host: Value, python: Value) -> Self {
        Self {
            host,
            python,
            touched: prepare(context, arguments),
            reproduce: reproduce::command(),
            quick: arguments.quick,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        }
    }

    /// A report: these, the variants, what is `particular` to the experiment, its figures, the goals.
    pub(crate) fn report(
        &self,
        schema: &str,
        variants: &[Variant],
        particular: Value,
        figures: &[Figure],
        goals: &[Goal],
    ) -> Value {
        let mut report = json!({
            "schema": schema,
            "hugeheap": env!("CARGO_PKG_VERSION"),
            "reproduce": self.reproduce,
            "started": self.started,
            "host": self.host,
            "python": self.python,
            "quick": self.quick,
            "memory_touched_before": self.touched,
            "interrupted_by_signal": interrupt::left_off(),
            "variants": variants.iter().map(Variant::json).collect::<Vec<_>>(),
        });
        if let (Value::Object(report), Value::Object(particular)) = (&mut report, particular) {
            report.extend(particular);
        }
        report[figure::KEY] = json!(figures);
        report["goals"] = goals.iter().map(Goal::json).collect();
        report
    }

    /// Those of a test: nothing is known but what it looks for.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        let (host, python) = (json!({"kernel": "x"}), json!({}));
        Self { host, python, touched: 5, reproduce: "hugeheap bench x".to_owned(), quick: true, started: 1 }
    }
}

/// Says what is measured and on what, touches free memory, measures.
///
/// # Errors
/// When nothing could be measured.
pub(crate) fn conduct<E: Experiment>(
    context: &Context,
    arguments: &ReportArguments,
    python: &Python,
    series: &Series<'_, E::Task>,
    experiment: &E,
) -> Result<(series::Of<E>, Circumstances), Refusal> {
    interrupt::watch();
    let out = &context.out;
    let host = host::facts(&context.facts);
    let names: Vec<_> = series.variants.iter().map(|variant| variant.name.as_str()).collect();
    out.progress(
        &format!("{}\nCPython {} at {}", host::line(&host), python.text, python.path.display()),
        true,
    );
    let (workloads, runs) = (series.tasks.len(), series.runs);
    out.progress(&format!("{workloads} workloads × {runs} runs, in turn on {}", names.join(", ")), true);
    let circumstances = Circumstances::new(context, arguments, host, python.json());
    let start = Instant::now();
    let results = series::measure(series, experiment, out)?;
    out.progress(&format!("measured in {}", seconds(start.elapsed().as_secs_f64())), true);
    Ok((results, circumstances))
}

/// The exit code of an experiment that was refused, after the reason was told.
pub(crate) fn ended(out: &Output, result: Result<u8, Refusal>) -> u8 {
    match result {
        Ok(code) => code,
        Err(Refusal::Usage(why)) => {
            out.error(&why);
            exit::USAGE
        }
        Err(Refusal::Unsupported(why)) => {
            out.error(&why);
            exit::UNSUPPORTED
        }
        Err(Refusal::Interrupted(signal)) => {
            out.warning("interrupted before each variant was measured once: there is nothing to report");
            (128 + signal) as u8
        }
    }
}

/// Hands tables and JSON out (see [`deliver`]); the exit code of a measurement with these goals.
pub(crate) fn conclude(
    out: &Output,
    arguments: &ReportArguments,
    report: &Value,
    text: &str,
    shown: Option<&str>,
    goals: &[Goal],
) -> Result<u8, Refusal> {
    let signal = interrupt::left_off();
    if let Some(signal) = signal {
        let note = format!(
            "INTERRUPTED by signal {signal}: what follows is of the rounds that were complete until then, fewer than planned.\n\n"
        );
        let (text, shown) = (note.clone() + text, shown.map(|shown| note + shown));
        deliver(out, arguments, report, &text, shown.as_deref())?;
        out.warning("interrupted: this is what was measured until then");
        return Ok((128 + signal) as u8);
    }
    deliver(out, arguments, report, text, shown)?;
    let missed = goals.iter().any(|goal| !goal.met);
    Ok(if arguments.check && missed { exit::FINDINGS } else { exit::OK })
}

/// Touches free memory once, as `arguments` say; how much.
fn prepare(context: &Context, arguments: &ReportArguments) -> u64 {
    let touchable = touch::touchable(&context.facts);
    let touched = match arguments.touch {
        Some(Touch::Bytes(len)) => len.min(touchable),
        Some(Touch::All) => touchable,
        // The host takes it two seconds later.
        None if PageReporting::of(&context.facts).is_some() => 0,
        None if arguments.quick => QUICK_TOUCH.min(touchable),
        None => touchable,
    };
    if let Err(error) = touch::touch_once(touched, &context.out) {
        context.out.warning(&format!(
            "free memory could not be touched beforehand: {error}; first runs may be slow"
        ));
    }
    touched
}

/// Fails before minutes are spent on a report that cannot be written.
pub(crate) fn writable<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<(), Refusal> {
    for file in files {
        std::fs::OpenOptions::new().create(true).append(true).open(file).map_err(|error| {
            Refusal::Usage(format!("{} cannot be written: {error}", file.display(), error = told(&error)))
        })?;
    }
    Ok(())
}

/// Writes a file of the report.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Refusal> {
    files::replace(file, text).map_err(|error| {
        Refusal::Unsupported(format!(
            "{} could not be written: {error}",
            file.display(),
            error = told(&error)
        ))
    })
}

/// Hands tables and JSON out as asked for. `shown`: the tables as standard output gets them, where that differs
/// (colours). They come first, and one file is written when another cannot be: what took minutes to measure is
/// not lost with a full disk.
fn deliver(
    out: &Output,
    arguments: &ReportArguments,
    report: &Value,
    text: &str,
    shown: Option<&str>,
) -> Result<(), Refusal> {
    let report = format!("{report:#}\n");
    out.data(match &arguments.json {
        Some(None) => &report,
        _ => shown.unwrap_or(text),
    });
    let tables = arguments.output.as_deref().map_or(Ok(()), |file| write(file, text));
    let data = arguments.json.iter().flatten().try_for_each(|file| write(file, &report));
    if arguments.quick {
        out.warning("--quick is a first look: too few runs for conclusions");
    }
    match (tables, data) {
        (Err(Refusal::Unsupported(one)), Err(Refusal::Unsupported(other))) => {
            Err(Refusal::Unsupported(format!("{one}; {other}")))
        }
        (tables, data) => tables.and(data),
    }
}

/// An estimate as JSON.
pub fn estimate(estimate: Estimate) -> Value {
    json!({"ratio": estimate.value, "low": estimate.low, "high": estimate.high})
}
