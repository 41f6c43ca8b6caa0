//! The extension module `hugeheap._hugeheap`: the process's runtime, as functions on plain numbers.
//!
//! What a user sees is the Python package around it. Importing the module does nothing: the runtime is looked up, or
//! started, by the first function that needs it. If the process was started with the preload library, its runtime
//! is the one that is used (see `hugeheap_cpython::interface`).
//!
//! Only the main interpreter may load it: the runtime serves the process, and PyO3's modules share their
//! objects between interpreters. CPython refuses that itself since 3.12, earlier versions load whatever they
//! are told to.
//!
//! Only CPython with a GIL loads this module: built for the stable ABI, whose objects other builds lay out
//! differently. The package looks before it imports.

mod observe;
mod target;

use core::ffi::c_void;
use hugeheap::arena::Policy;
use hugeheap::runtime::{SettingError, disabled_by_environment, parse_bytes, settings_from_environment};
use hugeheap::telemetry::{Fallback, HookState, Level, Snapshot};
use hugeheap_cpython::interface::{Interface, MERGE, NO_MERGE, Options, connect};
use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::OnceLock;

hugeheap_cpython::export_interface!();

/// The runtime of this process.
fn interface() -> &'static Interface {
    static FOUND: OnceLock<&'static Interface> = OnceLock::new();
    FOUND.get_or_init(|| connect(hugeheap_runtime_v1 as *const c_void))
}

fn unknown(what: &str, name: &str, known: &[&str]) -> PyErr {
    PyValueError::new_err(format!("unknown {what} {name:?}; choose one of {}", known.join(", ")))
}

/// Settings from Python: `None` leaves a setting as it is, a limit of 0 lifts it.
fn options(
    policy: Option<&str>,
    decay: Option<f64>,
    limit: Option<u64>,
    merge: Option<bool>,
) -> PyResult<Options> {
    let mut options = Options::UNCHANGED;
    if let Some(name) = policy {
        let policy = Policy::parse(name);
        let names = Policy::ALL.map(Policy::name);
        options.policy = policy.ok_or_else(|| unknown("policy", name, &names))? as u32;
    }
    if let Some(seconds) = decay {
        if !(0.001..=86_400.0).contains(&seconds) {
            return Err(PyValueError::new_err("decay must be seconds between 0.001 and 86400"));
        }
        options.decay = (seconds * 1e9) as u64;
    }
    if let Some(bytes) = limit {
        options.limit = bytes;
    }
    if let Some(is_wanted) = merge {
        options.merge = if is_wanted { MERGE } else { NO_MERGE };
    }
    Ok(options)
}

/// The state of this process. `HUGEHEAP_DISABLE=1` counts in a running process as it does for the preload library: the
/// operator's word is above the program's.
fn state() -> HookState {
    match HookState::from_number((interface().state)()).unwrap_or(HookState::Idle) {
        HookState::Idle if disabled_by_environment() == Ok(true) => HookState::Disabled,
        state => state,
    }
}

/// The first setting in the environment that is not understood, as a line; `None`: all are. `enable` would pass
/// over it.
#[pyfunction]
fn environment_mistake() -> Option<&'static str> {
    let mistake = disabled_by_environment().err().or_else(|| settings_from_environment().err());
    mistake.map(SettingError::message)
}

/// A number of bytes as people write it, as for the options of the commands and the settings of the
/// environment. A ``ValueError`` says what was not understood.
#[pyfunction]
fn bytes_of(text: &str) -> PyResult<u64> {
    parse_bytes(text).map_err(PyValueError::new_err)
}

/// Installs the hooks, or changes the settings if they are in. Answers the state's name.
#[pyfunction]
#[pyo3(signature = (policy=None, decay=None, limit=None, level=None, merge=None))]
fn enable(
    policy: Option<&str>,
    decay: Option<f64>,
    limit: Option<u64>,
    level: Option<&str>,
    merge: Option<bool>,
) -> PyResult<&'static str> {
    let mut options = options(policy, decay, limit, merge)?;
    if let Some(name) = level {
        let level = Level::parse(name);
        options.level = level.ok_or_else(|| unknown("level", name, &Level::ALL.map(Level::name)))? as u32;
    }
    if state() == HookState::Disabled {
        return Ok(HookState::Disabled.name());
    }
    // SAFETY: a function called from Python holds the GIL; the options live until the call returns.
    let state = unsafe { (interface().enable)(&raw const options) };
    Ok(HookState::from_number(state).map_or("unknown", HookState::name))
}

/// Changes the settings of the running heap.
#[pyfunction]
#[pyo3(signature = (policy=None, decay=None, limit=None, merge=None))]
fn configure(
    policy: Option<&str>,
    decay: Option<f64>,
    limit: Option<u64>,
    merge: Option<bool>,
) -> PyResult<()> {
    let options = options(policy, decay, limit, merge)?;
    // SAFETY: the options live until the call returns.
    unsafe { (interface().configure)(&raw const options) };
    Ok(())
}

/// Gives back what the retention rule would keep. Answers the bytes given back.
#[pyfunction]
fn give_back(python: Python<'_>) -> u64 {
    // System calls that take milliseconds: other threads may run meanwhile.
    python.detach(|| (interface().give_back)())
}

fn snapshot(measure: bool) -> Snapshot {
    let mut snapshot = Snapshot::EMPTY;
    let bytes = size_of::<Snapshot>();
    // SAFETY: the runtime writes at most `bytes` bytes of a snapshot, all of whose bit patterns are valid.
    unsafe { (interface().snapshot)((&raw mut snapshot).cast(), bytes, u32::from(measure)) };
    snapshot
}

/// The numbers of this process's heap: counters by name, and `fallbacks` by reason.
#[pyfunction]
fn stats(python: Python<'_>, measure: bool) -> PyResult<Bound<'_, PyDict>> {
    let snapshot = python.detach(|| snapshot(measure));
    observe::counters(python, &snapshot)
}

/// What this process's heap is: state and its explanation, level, policies, version of the interpreter.
#[pyfunction]
fn status(python: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let snapshot = snapshot(false);
    let state = state();
    let level = Level::from_number(snapshot.level);
    let explanation = state.explain_at(level);
    let result = PyDict::new(python);
    result.set_item("state", state.name())?;
    result.set_item("explanation", explanation)?;
    result.set_item("level", level.map_or("unknown", Level::name))?;
    let policy = |number| Policy::from_number(number).map_or("unknown", Policy::name);
    result.set_item("policy", policy(snapshot.policy))?;
    // Before the first arena nothing was chosen yet: what was asked for is in force.
    let effective = if snapshot.arenas_peak == 0 { snapshot.policy } else { snapshot.effective_policy };
    result.set_item("effective_policy", policy(effective))?;
    result.set_item("python", snapshot.version_text())?;
    Ok(result)
}

/// What to do about a fallback, or `None` for an unknown reason.
#[pyfunction]
fn hint(reason: &str) -> Option<&'static str> {
    Fallback::ALL.into_iter().find(|known| known.name() == reason).map(Fallback::hint)
}

/// Whether this is the interpreter that the process began with. Its number is 0 in every version.
fn is_main_interpreter(_: Python<'_>) -> bool {
    // SAFETY: the token says that this thread is attached to an interpreter.
    unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) == 0 }
}

/// The process's runtime.
#[pymodule]
fn _hugeheap(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !is_main_interpreter(module.py()) {
        return Err(PyImportError::new_err(
            "a subinterpreter cannot import hugeheap; what the main interpreter enables serves all interpreters",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("POLICIES", Policy::ALL.map(Policy::name).to_vec())?;
    module.add("LEVELS", Level::ALL.map(Level::name).to_vec())?;
    module.add_function(wrap_pyfunction!(environment_mistake, module)?)?;
    module.add_function(wrap_pyfunction!(bytes_of, module)?)?;
    module.add_function(wrap_pyfunction!(enable, module)?)?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(give_back, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(status, module)?)?;
    module.add_function(wrap_pyfunction!(hint, module)?)?;
    module.add_function(wrap_pyfunction!(observe::system, module)?)?;
    module.add_function(wrap_pyfunction!(observe::process, module)?)?;
    module.add_function(wrap_pyfunction!(observe::heaps, module)?)?;
    module.add_function(wrap_pyfunction!(observe::collapse, module)?)?;
    module.add_function(wrap_pyfunction!(observe::release, module)?)?;
    Ok(())
}
