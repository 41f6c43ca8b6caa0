//! `hugeheap map`: what the memory of a process is made of, and why it is not huge.
//!
//! ```text
//!   view    gathers under a deadline; mappings in cells of a huge page ──▶ text, picture, data (JSON)
//!   why     the reason of a cell
//! ```

pub(crate) mod arguments;
mod data;
mod picture;
pub(crate) mod text;
pub(crate) mod view;
pub(crate) mod why;

use crate::descriptors::told;
use crate::figure::svg;
use crate::file;
use crate::process::{self, Doing};
use crate::{Context, exit};
use arguments::MapArguments;
use core::time::Duration;
use hugeheap_os::Facts;

pub(crate) fn map(context: &Context, arguments: &MapArguments, json: bool) -> u8 {
    let out = &context.out;
    let id = arguments.process;
    let opened = match process::open(context, id, Doing::Look) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let mode = context.facts.thp().ok().map(|thp| thp.mode);
    let budget = Duration::from_secs_f64(arguments.budget);
    let view = match view::View::gather(&opened.process, &opened.status, mode, budget) {
        Ok(view) => view,
        Err(error) => return process::refuse_opened(out, id, &opened, Doing::Look, error),
    };
    if let Some(path) = &arguments.svg {
        if let Err(error) = file::replace(path, &svg::document(&[picture::figure(&view, arguments.all)])) {
            out.error(&format!("{} cannot be written: {error}", path.display(), error = told(&error)));
            return file::refused(&error);
        }
        out.detail(&format!("{} written", path.display()));
    }
    if json {
        out.data(&crate::output::json(&data::data(&view, arguments.all)));
    } else if arguments.svg.is_none() {
        out.data(&text::text(&view, arguments.all, arguments.rows as usize, out.colour_on_stdout()));
    }
    // A picture with something missing is a picture; what is missing was said in it.
    exit::OK
}
