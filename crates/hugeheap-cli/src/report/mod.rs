//! `hugeheap report`: one page of measurements.
//!
//! ```text
//!   files ──▶ read ──▶ section ──▶ page (HTML), plots (SVG)
//!                       ├── figures that the measurement brought along
//!                       └── recordings, squares, measured: figures made of what it tells
//! ```

pub(crate) mod arguments;
mod page;
mod read;
mod recordings;
mod section;

use crate::descriptors::told;
use crate::figure::{Content, svg};
use crate::output::counted;
use crate::{Context, exit, file, reproduce};
use arguments::ReportArguments;
use page::Names;
use section::Section;
use std::io;
use std::path::Path;

pub(crate) fn report(context: &Context, arguments: &ReportArguments) -> u8 {
    let out = &context.out;
    match made(arguments) {
        Ok((sections, plots)) => {
            let figures: usize = sections.iter().map(|section| section.figures.len()).sum();
            let also = match plots {
                0 => String::new(),
                plots => format!("; {}", counted(plots, "plot beside it", "plots beside it")),
            };
            let parts = counted(figures as u64, "figure", "figures");
            out.progress(&format!("{}: {parts}{also}", arguments.output.display()), true);
            exit::OK
        }
        Err((why, code)) => {
            out.error(&why);
            code
        }
    }
}

/// Makes the page and the plots. An error is one line and an exit code; nothing was written then but for a full disk.
fn made(arguments: &ReportArguments) -> Result<(Vec<Section>, u64), (String, u8)> {
    let unread = |why| (why, exit::USAGE);
    let inputs = arguments.files.iter().map(|file| read::read(file)).collect::<Result<Vec<_>, _>>();
    let sections = section::sections(&inputs?).map_err(unread)?;
    let page = page::page(&arguments.title, &sections, &reproduce::command());
    let failed = |path: &Path, error: io::Error| {
        (
            format!("{} could not be written: {error}", path.display(), error = told(&error)),
            file::refused(&error),
        )
    };
    let mut written = 0;
    if let Some(directory) = &arguments.plots {
        std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        let mut names = Names::default();
        for figure in sections.iter().flat_map(|section| &section.figures) {
            if matches!(figure.content, Content::Table(_)) {
                continue;
            }
            let path = directory.join(format!("{}.svg", names.of(&figure.title)));
            file::replace(&path, &svg::document(std::slice::from_ref(figure)))
                .map_err(|error| failed(&path, error))?;
            written += 1;
        }
    }
    file::replace(&arguments.output, &page).map_err(|error| failed(&arguments.output, error))?;
    Ok((sections, written))
}
