//! What processes use while nothing happens.

use std::time::Duration;

use crate::arguments::Arguments;
use crate::process;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let seconds: u64 = arguments.value("seconds", 60)?;
    let pids = arguments.pids()?;
    let before = process::usage(&pids)?;
    std::thread::sleep(Duration::from_secs(seconds));
    let after = process::usage(&pids)?;
    let rate = |value: f64| value / seconds as f64;
    println!(
        "RSS {:.1} MiB (peak {:.1}), threads {}, CPU {:.2} % of a core, {:.0} context switches/s, {:.2} MiB written an hour ({seconds} s)",
        after.rss_mib,
        after.peak_mib,
        after.threads,
        rate(after.cpu_seconds - before.cpu_seconds) * 100.0,
        rate((after.switches.saturating_sub(before.switches)) as f64),
        rate((after.written - before.written) as f64) * 3600.0 / 1_048_576.0
    );
    Ok(())
}
