//! What the kernel's log says of a container that was killed for want of memory.
//!
//! The cgroup of a dead container is gone before anybody can look at its counters, and in version 1 its pod's do not
//! count for it. The kernel notes each such kill, with the victim's cgroup, before it happens.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

const LOG: &str = "/dev/kmsg";
/// Larger than any record: one that does not fit cannot be read.
const RECORD: usize = 8192;

/// Whether the log names the container as out of memory. Reads what is in memory and does not wait.
pub fn tells_of(container_id: &str) -> io::Result<bool> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(LOG)?;
    let mut record = [0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                if names(&String::from_utf8_lossy(&record[..length]), container_id) {
                    return Ok(true);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // Overwritten while it was read: the next read goes on behind it.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a record is the summary of a kill in the container's cgroup or below.
fn names(record: &str, container_id: &str) -> bool {
    let Some((_, summary)) = record.split_once(";oom-kill:") else {
        return false;
    };
    let mut fields = summary.split(',');
    let cgroup = fields.find_map(|field| field.strip_prefix("task_memcg="));
    cgroup.is_some_and(|path| !container_id.is_empty() && path.contains(container_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_victims_cgroup_counts() {
        let record = "6,7245,27169154364,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,\
            mems_allowed=0,oom_memcg=/sampan-1/kubepods/podp,task_memcg=/sampan-1/kubepods/podp/c2,task=tail,pid=5,uid=0\n";
        assert!(names(record, "c2"));
        assert!(!names(record, "c1") && !names(record, "c3") && !names(record, ""));
        assert!(!names(
            "4,1,2,-;tail invoked oom-killer: task_memcg=/c2",
            "c2"
        ));
    }
}
