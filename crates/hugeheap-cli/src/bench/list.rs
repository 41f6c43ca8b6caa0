//! `hugeheap bench list`: which experiments there are, and what they can be compared with here.

use super::give_back::workload::Workload;
use super::obmalloc::workload::WORKLOADS;
use super::peers::PEERS;
use super::python::Python;
use crate::cli::ListArguments;
use crate::{Context, exit};
use serde_json::json;

const SCHEMA: &str = "hugeheap.bench.list/1";

pub(crate) fn list(context: &Context, arguments: &ListArguments) -> u8 {
    let python = Python::find(arguments.python.as_deref());
    let peers: Vec<_> = PEERS.iter().map(|peer| (peer.name, peer.find())).collect();
    let text = if arguments.json {
        let value = json!({
            "schema": SCHEMA,
            "experiments": [{
                "name": "obmalloc",
                "workloads": WORKLOADS.iter().map(|workload| json!({
                    "name": workload.name, "description": workload.description,
                })).collect::<Vec<_>>(),
                "python": python.as_ref().map(Python::json).ok(),
                "peers": peers.iter().map(|(name, path)| json!({"name": name, "path": path})).collect::<Vec<_>>(),
            }, {
                "name": "give-back",
                "workloads": Workload::ALL.iter().map(|workload| json!({
                    "name": workload.name(), "description": workload.description(),
                })).collect::<Vec<_>>(),
                "python": python.as_ref().map(Python::json).ok(),
                "peers": peers.iter().map(|(name, path)| json!({"name": name, "path": path})).collect::<Vec<_>>(),
            }],
        });
        format!("{value:#}\n")
    } else {
        let mut text =
            "obmalloc  CPython's small objects: time, page faults, memory and huge-page coverage\n"
                .to_owned();
        for workload in &WORKLOADS {
            text += &format!("    {:<19} {}\n", workload.name, workload.description);
        }
        text += "give-back  memory freed and needed again: what giving back costs, and what keeping holds\n";
        for workload in Workload::ALL {
            text += &format!("    {:<19} {}\n", workload.name(), workload.description());
        }
        text += "  Here:\n";
        match &python {
            Ok(python) => {
                text += &format!("    {:<19} {} ({})\n", "python", python.path.display(), python.text)
            }
            Err(why) => text += &format!("    {:<19} {why}\n", "python"),
        }
        for (name, path) in &peers {
            let found =
                path.as_ref().map_or_else(|| "not found".to_owned(), |path| path.display().to_string());
            text += &format!("    {name:<19} {found}\n");
        }
        text
    };
    context.out.data(&text);
    exit::OK
}
