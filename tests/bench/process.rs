//! What processes have used so far, from /proc.

use anyhow::Context;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_mib: f64,
    pub(crate) peak_mib: f64,
    pub(crate) switches: u64,
    pub(crate) written: u64,
    pub(crate) threads: u64,
}

/// The sum over the processes.
pub(crate) fn usage(pids: &[u32]) -> anyhow::Result<Usage> {
    let mut sum = Usage::default();
    for pid in pids {
        let one = read(*pid).with_context(|| format!("process {pid}"))?;
        sum.cpu_seconds += one.cpu_seconds;
        sum.rss_mib += one.rss_mib;
        sum.peak_mib += one.peak_mib;
        sum.switches += one.switches;
        sum.written += one.written;
        sum.threads += one.threads;
    }
    Ok(sum)
}

fn read(pid: u32) -> anyhow::Result<Usage> {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let stat = file("stat")?;
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let status = file("status")?;
    let mut switches = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let text = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        switches += number(&text, "voluntary_ctxt_switches:")
            + number(&text, "nonvoluntary_ctxt_switches:");
    }
    Ok(Usage {
        // Clock ticks are hundredths of a second on every Linux we run on.
        cpu_seconds: (ticks(11) + ticks(12)) / 100.0,
        rss_mib: number(&status, "VmRSS:") as f64 / 1024.0,
        peak_mib: number(&status, "VmHWM:") as f64 / 1024.0,
        switches,
        written: number(&file("io").unwrap_or_default(), "write_bytes:"),
        threads: number(&status, "Threads:"),
    })
}

fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Prints what the processes used between two readings, per operation.
pub(crate) fn print_per_operation(before: Usage, after: Usage, operations: usize, what: &str) {
    let cpu = after.cpu_seconds - before.cpu_seconds;
    println!(
        "  server CPU {:.3} ms a {what}, RSS {:.1} MiB (peak {:.1})",
        cpu * 1e3 / operations as f64,
        after.rss_mib,
        after.peak_mib
    );
}
