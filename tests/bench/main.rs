//! Measures a Kubernetes API and the processes behind it.
//!
//! `sampan-bench MEASUREMENT (--kubeconfig FILE | --server URL --ca FILE (--token T | --cert FILE --key FILE)) [NAME=VALUE …]`
//!
//! A measurement is one file and one entry in [`MEASUREMENTS`]. Every one prints one line a figure; figures of two
//! products count as ratios, taken in the same hour on the same machine.
#![expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]

mod arguments;
mod boot;
mod create;
mod crud;
mod floor;
mod idle;
mod kubeconfig;
mod list;
mod podstart;
mod process;
mod stats;
mod watch;

use anyhow::bail;

use arguments::Arguments;

type Run = fn(&Arguments) -> anyhow::Result<()>;

const MEASUREMENTS: &[(&str, &str, Run)] = &[
    (
        "boot",
        "cmd=COMMAND [node=NAME]: start to /readyz and to node Ready",
        boot::run,
    ),
    (
        "idle",
        "pid=PID[,PID…] [seconds=60]: memory, processor, context switches, bytes written",
        idle::run,
    ),
    (
        "create",
        "[count=2000] [clients=8] [size=1024] [pid=PID]: ConfigMaps created per second",
        create::run,
    ),
    (
        "crud",
        "[count=500] [pid=PID]: one connection, percentiles of create, get, update, patch, apply, delete",
        crud::run,
    ),
    (
        "list",
        "[count=10000] [pid=PID]: lists of Pods, whole and in pages",
        list::run,
    ),
    (
        "watch",
        "[watchers=100] [events=1000] [pid=PID]: fan-out",
        watch::run,
    ),
    (
        "podstart",
        "[single=5] [batch=30] [image=IMAGE]: create to Ready",
        podstart::run,
    ),
    (
        "floor",
        "runtime=SOCKET [single=5] [batch=30] [image=IMAGE]: what the runtime itself needs for the same Pods",
        floor::run,
    ),
];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let Some((_, _, run)) = MEASUREMENTS
        .iter()
        .find(|(name, _, _)| *name == arguments.measurement)
    else {
        for (name, usage, _) in MEASUREMENTS {
            println!("{name}  {usage}");
        }
        bail!("no measurement {:?}", arguments.measurement);
    };
    run(&arguments)
}
