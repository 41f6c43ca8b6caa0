//! The variants: what a workload runs on, in every experiment.
//!
//! Each is an interpreter and an environment, tried once before anything is measured: an allocator that cannot be
//! loaded, or a hook that was not installed, would else give figures of something else.

use crate::bench::peers::PEERS;
use crate::bench::python::{self, Python};
use crate::cli::VariantArguments;
use crate::descriptors::told;
use crate::run::{LEVEL, POLICY, PRELOAD, TELEMETRY, records};
use crate::{Context, run};
use hugeheap::arena::Policy;
use hugeheap::telemetry::{HookState, Level};
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
    /// Policy and level, of hugeheap's variants.
    pub(crate) setting: Option<(Policy, Level)>,
    pub(crate) python: PathBuf,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) version: Option<String>,
}

impl Variant {
    fn new(name: &str, kind: Kind, python: &Path) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            setting: None,
            python: python.to_path_buf(),
            environment: Vec::new(),
            version: None,
        }
    }

    /// One that is not to be run: hugeheap's at policy `auto`, or another kind.
    #[cfg(test)]
    pub(crate) fn for_tests(name: &str, kind: Kind) -> Self {
        let setting = (kind == Kind::Hugeheap).then_some((Policy::Auto, Level::Arenas));
        Self { setting, ..Self::new(name, kind, Path::new("/usr/bin/python3")) }
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
            "policy": self.setting.map(|(policy, _)| policy.name()),
            "level": self.setting.map(|(_, level)| level.name()),
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
            .map_err(|error| told(&error).to_string())?;
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
    /// A signal ended the measurement early.
    Interrupted(i32),
}

/// The variants `arguments` ask for, stock first, then hugeheap's, then peers.
pub(crate) fn choose(
    context: &Context,
    arguments: &VariantArguments,
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
    arguments: &VariantArguments,
    python: &Python,
) -> Result<Vec<Variant>, Refusal> {
    let mut policies = Vec::new();
    for name in &arguments.policies {
        match (name.as_str(), Policy::parse(name)) {
            ("all", _) => policies.extend(Policy::ALL),
            ("none", _) => {
                levels(&arguments.level)?;
                return Ok(Vec::new());
            }
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
    let levels = levels(&arguments.level)?;
    let mut variants: Vec<Variant> = Vec::new();
    for policy in policies {
        for &level in &levels {
            let mut variant = Variant::new(&named(policy, level), Kind::Hugeheap, &python.path)
                .with(PRELOAD, &library)
                .with(POLICY, policy.name())
                .with(LEVEL, level.name());
            variant.setting = Some((policy, level));
            if variants.iter().all(|known| known.name != variant.name) {
                variants.push(variant);
            }
        }
    }
    for variant in &mut variants {
        hooked(variant).map_err(|why| {
            Refusal::Unsupported(format!(
                "{}: {} was preloaded into {}, but {why}",
                variant.name,
                library.display(),
                python.path.display()
            ))
        })?;
        variant.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    }
    Ok(variants)
}

/// The levels to measure, in their order. Level `arenas` is always among them: what `objects` brings is a claim
/// against it.
fn levels(names: &[String]) -> Result<Vec<Level>, Refusal> {
    let mut highest = Level::Arenas;
    for name in names {
        let level = match name.as_str() {
            "all" => Some(Level::Objects),
            // The workloads are of small objects, which level `malloc` has from the same heap.
            name => Level::parse(name).filter(|level| *level != Level::Malloc),
        };
        let Some(level) = level else {
            let known: Vec<_> = [Level::Arenas, Level::Objects].iter().map(|level| level.name()).collect();
            return Err(Refusal::Usage(format!(
                "--level: there is no level '{name}'; the levels are {}, or all",
                known.join(", ")
            )));
        };
        if level as u32 > highest as u32 {
            highest = level;
        }
    }
    Ok(Level::ALL.into_iter().filter(|level| *level as u32 <= highest as u32).collect())
}

/// `auto` at level arenas, `auto/objects` at level objects.
fn named(policy: Policy, level: Level) -> String {
    match level {
        Level::Arenas => policy.name().to_owned(),
        Level::Objects | Level::Malloc => format!("{}/{}", policy.name(), level.name()),
    }
}

/// Who runs when: the number of the round and the place of the variant. Each round begins with another one, so that no
/// variant always follows the same.
pub(crate) fn turns(variants: usize, runs: u32) -> impl Iterator<Item = (u32, usize)> {
    (0..runs)
        .flat_map(move |round| (0..variants).map(move |place| (round, (place + round as usize) % variants)))
}

/// The variant the goals are about: hugeheap's first policy, at the highest level measured.
pub(crate) fn headline(variants: &[Variant]) -> Option<usize> {
    let (policy, _) = variants.iter().find_map(|variant| variant.setting)?;
    let ours = variants.iter().enumerate().filter_map(|(place, variant)| {
        let (own, level) = variant.setting?;
        (own == policy).then_some((level as u32, place))
    });
    ours.max().map(|(_, place)| place)
}

/// The variant with the policy of the one at `place`, at `level`; `None` when that is the same one.
pub(crate) fn beside(variants: &[Variant], place: usize, level: Level) -> Option<usize> {
    let (policy, own) = variants[place].setting?;
    if own == level {
        return None;
    }
    variants.iter().position(|variant| variant.setting == Some((policy, level)))
}

/// What the columns of the tables are.
pub(crate) fn described(variants: &[Variant]) -> String {
    let mut text = "Variants\n".to_owned();
    for variant in variants {
        let settings: Vec<_> = variant
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={}", Path::new(value).display()))
            .collect();
        let what = match variant.kind {
            Kind::Stock => variant.python.display().to_string(),
            Kind::Hugeheap | Kind::Peer => settings.join(" "),
        };
        let version = variant.version.as_deref().unwrap_or("version unknown");
        text += &format!("  {:<17}{version:<17}{what}\n", variant.name);
    }
    text
}

/// Fails with the reason when the hook is not installed.
fn hooked(variant: &Variant) -> Result<(), String> {
    let records = records::Records::new().map_err(|error| told(&error).to_string())?;
    let variant = variant.clone().with(TELEMETRY, records.path());
    variant.answer("pass")?;
    let found = records.read();
    let snapshot =
        found.snapshots.first().ok_or("it told nothing; is it of the same version as this program?")?;
    match (snapshot.hook_state(), Level::from_number(snapshot.level), variant.setting) {
        (Some(HookState::Hooked), Some(real), Some((_, asked))) if real != asked => {
            Err(format!("it runs at level {}, not {}", real.name(), asked.name()))
        }
        (Some(HookState::Hooked), _, _) => Ok(()),
        (Some(state), _, _) => Err(state.explain().to_owned()),
        (None, _, _) => Err("it told a state this program does not know".to_owned()),
    }
}

fn peers(context: &Context, arguments: &VariantArguments, python: &Python) -> Result<Vec<Variant>, Refusal> {
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

fn peer(name: &str, arguments: &VariantArguments, python: &Python) -> Result<Variant, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_measured_beside_those_below_it() {
        let levels = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            levels(&names).map_err(|refusal| match refusal {
                Refusal::Usage(why) | Refusal::Unsupported(why) => why,
                Refusal::Interrupted(_) => panic!("nothing was measured"),
            })
        };
        assert_eq!(levels(&[]), Ok(vec![Level::Arenas]));
        assert_eq!(levels(&["arenas"]), Ok(vec![Level::Arenas]));
        assert_eq!(levels(&["objects"]), Ok(vec![Level::Arenas, Level::Objects]));
        assert_eq!(levels(&["all"]), levels(&["arenas", "objects"]));
        let why = levels(&["cells"]).unwrap_err();
        assert!(why.contains("cells") && why.contains("arenas, objects"), "{why}");
    }

    #[test]
    fn turns_begin_with_another_variant_each_round() {
        let turns: Vec<_> = turns(3, 2).collect();
        assert_eq!(turns, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
    }

    #[test]
    fn the_goals_are_about_the_first_policy_at_the_highest_level() {
        let variant = |setting| Variant { setting, ..Variant::new("x", Kind::Hugeheap, Path::new("python")) };
        let variants = [
            variant(None),
            variant(Some((Policy::Auto, Level::Arenas))),
            variant(Some((Policy::Auto, Level::Objects))),
            variant(Some((Policy::Thp, Level::Objects))),
        ];
        assert_eq!(headline(&variants), Some(2));
        assert_eq!(headline(&variants[..1]), None);
        assert_eq!(beside(&variants, 2, Level::Arenas), Some(1));
        assert_eq!(beside(&variants, 1, Level::Arenas), None);
        assert_eq!(beside(&variants, 3, Level::Arenas), None);
        assert_eq!(named(Policy::Thp, Level::Objects), "thp/objects");
    }
}
