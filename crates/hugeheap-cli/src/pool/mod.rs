//! `hugeheap pool`: the pools of explicit huge pages.
//!
//! ```text
//!   facts   the pools, read: all nodes together and each node
//!   plan    how large a pool is to become (pure)
//!   set     set, ensure, release: write, read again, say what was got ──▶ change
//!   list    shows them
//! ```

pub(crate) mod arguments;
pub(crate) mod facts;
pub(crate) mod list;
pub(crate) mod plan;
mod set;

use crate::{Context, change, exit};
use arguments::{Action, PoolArguments};
use hugeheap_os::Error;
use list::Pools;
use set::{Asked, Request};

pub(crate) fn pool(context: &Context, arguments: &PoolArguments, json: bool) -> u8 {
    match &arguments.action {
        Action::List(list) => show(context, json || list.json),
        Action::Set(set) => {
            let request = Request {
                wish: set.amount.map_or(Asked::Same, Asked::Size),
                overcommit: set.overcommit,
                which: &set.which,
                growth: Some(&set.growth),
                how: &set.how,
            };
            set::set(context, &request, json || set.how.json)
        }
        Action::Ensure(ensure) => {
            let request = Request {
                wish: Asked::Free(ensure.amount),
                overcommit: None,
                which: &ensure.which,
                growth: Some(&ensure.growth),
                how: &ensure.how,
            };
            set::set(context, &request, json || ensure.how.json)
        }
        Action::Release(release) => {
            let request = Request {
                wish: Asked::Nothing,
                overcommit: None,
                which: &release.which,
                growth: None,
                how: &release.how,
            };
            set::set(context, &request, json || release.how.json)
        }
    }
}

/// Why there are no pools, and the exit code.
fn no_pools(error: Error) -> (String, u8) {
    let message = match error.code {
        libc::ENOENT => format!(
            "this kernel has no pools of huge pages: {} does not exist (CONFIG_HUGETLBFS), or a container hides /sys",
            facts::DIRECTORY
        ),
        _ => format!("the pools cannot be read: reading {}", change::refusal(facts::DIRECTORY, error)),
    };
    (message, change::exit_code(error))
}

fn show(context: &Context, json: bool) -> u8 {
    match Pools::read(&context.facts.knobs()) {
        Ok(pools) => {
            let text = if json { crate::output::json(&pools.json()) } else { pools.text() };
            context.out.data(&text);
            exit::OK
        }
        Err(error) => {
            let (message, code) = no_pools(error);
            context.out.error(&message);
            code
        }
    }
}
