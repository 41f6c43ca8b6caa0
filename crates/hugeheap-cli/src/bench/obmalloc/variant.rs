//! The variants: what a workload runs on.
//!
//! Each is an interpreter and an environment, tried once before anything is measured: an allocator that cannot be
//! loaded, or a hook that was not installed, would else give figures of something else.

use crate::bench::peers::PEERS;
use crate::bench::python::{self, Python};
use crate::cli::ObmallocArguments;
use crate::run::{POLICY, PRELOAD, TELEMETRY, records};
use crate::{Context, run};
use hugeheap::arena::Policy;
use hugeheap::telemetry::HookState;
use hugeheap_os::Facts;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Peers that are not a library: options of CPython itself.
const PYTHON_MIMALLOC: &str = "python-mimalloc";
const PYTHON_HUGEPAGES: &str = "python-hugepages";

/// What kind of variant it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stock,
    Hugeheap,
    Peer,
}

/// What a workload runs on.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) python: PathBuf,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) version: Option<String>,
}

impl Variant {
    fn new(name: &str, kind: Kind, python: &Path) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            python: python.to_path_buf(),
            environment: Vec::new(),
            version: None,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// A command of its interpreter in its environment.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        python::clean(&mut command);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn json(&self) -> Value {
        let environment: serde_json::Map<_, _> = self
            .environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Value::from(value.to_string_lossy().into_owned())))
            .collect();
        json!({
            "name": self.name,
            "kind": format!("{:?}", self.kind).to_lowercase(),
            "python": self.python,
            "environment": environment,
            "version": self.version,
        })
    }

    /// Runs a small program; what it printed, or how it failed.
    fn answer(&self, program: &str) -> Result<String, String> {
        let output = self
            .command()
            .args(["-c", program])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        // A library the loader cannot load is a complaint, not a failure.
        if !output.status.success() || said.contains("cannot be preloaded") {
            return Err(said.lines().last().unwrap_or("it failed without a message").to_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Why variants could not be chosen.
pub(crate) enum Refusal {
    /// A name on the command line that is none.
    Usage(String),
    /// Something is missing here.
    Unsupported(String),
}

/// The variants `arguments` ask for, stock first, then hugeheap's, then peers.
pub(crate) fn choose(
    context: &Context,
    arguments: &ObmallocArguments,
    python: &Python,
) -> Result<Vec<Variant>, Refusal> {
    let mut variants = vec![Variant::new("stock", Kind::Stock, &python.path)];
    variants[0].version = Some(python.text.clone());
    variants.extend(hugeheap(context, arguments, python)?);
    variants.extend(peers(context, arguments, python)?);
    Ok(variants)
}

fn hugeheap(
    context: &Context,
    arguments: &ObmallocArguments,
    python: &Python,
) -> Result<Vec<Variant>, Refusal> {
    let mut policies = Vec::new();
    for name in &arguments.policies {
        match (name.as_str(), Policy::parse(name)) {
            ("all", _) => policies.extend(Policy::ALL),
            ("none", _) => return Ok(Vec::new()),
            (_, Some(policy)) => policies.push(policy),
            (_, None) => {
                let known: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
                return Err(Refusal::Usage(format!(
                    "--policies: there is no policy '{name}'; the policies are {}, or all, or none",
                    known.join(", ")
                )));
            }
        }
    }
    if policies.is_empty() {
        policies = vec![Policy::Auto, Policy::Thp];
        let page = context.facts.page_sizes().huge.unwrap_or(2 << 20);
        if matches!(context.facts.hugetlb_pool(page), Ok(Some(pool)) if pool.available() > 0) {
            policies.push(Policy::Hugetlb);
        }
    }
    if python.free_threaded {
        return Err(Refusal::Unsupported(format!(
            "{} is free-threaded: {}; choose another with --python",
            python.path.display(),
            HookState::FreeThreaded.explain()
        )));
    }
    let library = run::library::find(context.library.as_deref())
        .map_err(|missing| Refusal::Unsupported(missing.to_string()))?;
    let mut variants: Vec<Variant> = Vec::new();
    for policy in policies {
        let variant = Variant::new(policy.name(), Kind::Hugeheap, &python.path)
            .with(PRELOAD, &library)
            .with(POLICY, policy.name());
        if variants.iter().all(|known| known.name != variant.name) {
            variants.push(variant);
        }
    }
    for variant in &mut variants {
        hooked(variant).map_err(|why| {
            Refusal::Unsupported(format!(
                "policy {}: {} was preloaded into {}, but {why}",
                variant.name,
                library.display(),
                python.path.display()
            ))
        })?;
        variant.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    }
    Ok(variants)
}

/// Fails with the reason when the hook is not installed.
fn hooked(variant: &Variant) -> Result<(), String> {
    let records = records::Records::new().map_err(|error| error.to_string())?;
    let variant = variant.clone().with(TELEMETRY, records.path());
    variant.answer("pass")?;
    match records.read().snapshots.first().and_then(hugeheap::telemetry::Snapshot::hook_state) {
        Some(HookState::Hooked) => Ok(()),
        Some(state) => Err(state.explain().to_owned()),
        None => Err("it told nothing; is it of the same version as this program?".to_owned()),
    }
}

fn peers(context: &Context, arguments: &ObmallocArguments, python: &Python) -> Result<Vec<Variant>, Refusal> {
    let names: Vec<&str> =
        PEERS.iter().map(|peer| peer.name).chain([PYTHON_MIMALLOC, PYTHON_HUGEPAGES]).collect();
    let asked: Vec<&str> =
        arguments.against.iter().map(String::as_str).filter(|name| *name != "stock").collect();
    if let Some(unknown) = asked.iter().find(|name| !names.contains(name) && !["all", "none"].contains(name))
    {
        return Err(Refusal::Usage(format!(
            "--against: there is no peer '{unknown}'; the peers are {}, or all, or none",
            names.join(", ")
        )));
    }
    if asked.contains(&"none") || (asked.is_empty() && !arguments.against.is_empty()) {
        return Ok(Vec::new());
    }
    let everything = asked.is_empty() || asked.contains(&"all");
    let mut variants = Vec::new();
    for name in names {
        if !everything && !asked.contains(&name) {
            continue;
        }
        match peer(name, arguments, python) {
            Ok(variant) => variants.push(variant),
            Err(why)
                if asked.contains(&name)
                    || (name == PYTHON_HUGEPAGES && arguments.hugepage_python.is_some()) =>
            {
                return Err(Refusal::Unsupported(format!("--against {name}: {why}")));
            }
            Err(why) => context.out.detail(&format!("peer {name} is left out: {why}")),
        }
    }
    Ok(variants)
}

fn peer(name: &str, arguments: &ObmallocArguments, python: &Python) -> Result<Variant, String> {
    match name {
        PYTHON_MIMALLOC => {
            if python.version < [3, 13, 0] {
                return Err("CPython has its own mimalloc since 3.13".to_owned());
            }
            let mut variant = Variant::new(name, Kind::Peer, &python.path)
                .with("PYTHONMALLOC", "mimalloc")
                .with("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1");
            variant.answer("pass")?;
            variant.version = Some(python.text.clone());
            Ok(variant)
        }
        PYTHON_HUGEPAGES => {
            let path = arguments.hugepage_python.as_ref().ok_or("name one with --hugepage-python PATH")?;
            let built = Python::ask(path).map_err(|why| format!("{}: {why}", path.display()))?;
            if !built.configured("--with-pymalloc-hugepages") {
                return Err(format!("{} was not built with --with-pymalloc-hugepages", built.path.display()));
            }
            let mut variant =
                Variant::new(name, Kind::Peer, &built.path).with("PYTHON_PYMALLOC_HUGEPAGES", "1");
            variant.version = Some(built.text);
            Ok(variant)
        }
        _ => {
            let peer = PEERS.iter().find(|peer| peer.name == name).ok_or("no such peer")?;
            let library = peer.find().ok_or("its library is not installed")?;
            let mut variant = Variant::new(name, Kind::Peer, &python.path)
                .with(PRELOAD, library)
                .with("PYTHONMALLOC", "malloc");
            for (name, value) in peer.environment {
                variant = variant.with(name, value);
            }
            variant.version = Some(variant.answer(&peer.question())?);
            Ok(variant)
        }
    }
}
