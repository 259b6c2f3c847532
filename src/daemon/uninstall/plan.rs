//! What is to be done, in its order: those who work, what they made, what was installed, the data.

use std::path::PathBuf;

use sampan_host::Change;

use super::INSTALLED;
use super::observe::{Found, Manager};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// By the service manager, so that it does not start it again.
    StopService(Manager),
    StopSampan(i32),
    /// Containers with this many shims.
    EndContainers(usize),
    EndRuntime(i32),
    Unmount(PathBuf),
    /// What containerd or a shim left behind.
    RemoveLeftover(PathBuf),
    Undo(Change),
    /// What the installer made.
    RemoveFile(PathBuf),
    /// If nothing of others is in it.
    RemoveDirectory(PathBuf),
    Purge(PathBuf),
    /// Told, not done.
    Keep {
        what: PathBuf,
        how: String,
    },
    Tell(String),
}

/// Everything, for a dry run.
pub(super) fn plan(found: &Found, purge: bool) -> Vec<Step> {
    let mut steps = stop(found);
    steps.extend(remove(found, purge));
    steps
}

/// First of all nobody may make anything new.
pub(super) fn stop(found: &Found) -> Vec<Step> {
    let list = found.installed.as_ref();
    let managed = list.filter(|list| list.manager != Manager::None);
    let service = managed.map(|list| Step::StopService(list.manager));
    let process = found.sampan.map(Step::StopSampan);
    service.into_iter().chain(process).collect()
}

/// What is there once sampan has stopped.
pub(super) fn remove(found: &Found, purge: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let list = found.installed.as_ref();
    steps.extend(found.runtime.iter().map(|p| Step::EndRuntime(p.pid)));
    // Without shims of ours the containers of this node are another runtime's, and stay.
    if !found.shims.is_empty() {
        steps.push(Step::EndContainers(found.shims.len()));
    }
    steps.extend(found.mounts.iter().cloned().map(Step::Unmount));
    steps.extend(found.leftovers.iter().cloned().map(Step::RemoveLeftover));
    steps.extend(found.changes().into_iter().map(Step::Undo));
    // Where no journal is left, what the kernel shows is taken back all the same.
    let known = |path: &PathBuf| {
        let change = Change::Cgroup { path: path.clone() };
        found.changes().contains(&change)
    };
    let unknown = found.cgroups.iter().filter(|path| !known(path)).cloned();
    steps.extend(unknown.map(|path| Step::Undo(Change::Cgroup { path })));
    steps.extend(data(found, purge));
    if let Some(list) = list {
        steps.extend(list.files.iter().cloned().map(Step::RemoveFile));
        // Last of the files: as long as it is there, an uninstall can go on.
        steps.push(Step::RemoveFile(INSTALLED.into()));
        steps.extend(list.directories.iter().cloned().map(Step::RemoveDirectory));
        if !list.packages.is_empty() {
            steps.push(Step::Tell(format!(
                "kept: the packages {}, which were installed for sampan; other programs may use them by now",
                list.packages.join(" ")
            )));
        }
    }
    steps
}

fn data(found: &Found, purge: bool) -> Option<Step> {
    let what = found.data_dir.clone();
    match (found.data, purge) {
        (false, _) => None,
        (true, true) => Some(Step::Purge(what)),
        (true, false) => Some(Step::Keep {
            how: format!("rm -rf --one-file-system {}", what.display()),
            what,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::uninstall::observe::Installed;
    use crate::uninstall::processes::Process;
    use sampan_host::Journal;

    fn found() -> Found {
        Found {
            data_dir: "/d".into(),
            installed: None,
            sampan: None,
            runtime: Vec::new(),
            shims: Vec::new(),
            cgroups: Vec::new(),
            mounts: Vec::new(),
            leftovers: Vec::new(),
            journal: None,
            data: false,
        }
    }

    #[test]
    fn nothing_found_is_nothing_to_do() {
        assert_eq!(plan(&found(), true), []);
    }

    #[test]
    fn containers_of_another_runtime_stay() {
        let foreign = Found {
            cgroups: vec!["/sys/fs/cgroup/s".into()],
            ..found()
        };
        let ends = |step: &Step| matches!(step, Step::EndContainers(_));
        assert!(!plan(&foreign, true).iter().any(ends));
        let ours = Found {
            shims: vec![Process::new(9, &["containerd-shim-runc-v2"])],
            ..foreign
        };
        assert!(plan(&ours, true).iter().any(ends));
    }

    #[test]
    fn those_who_work_end_before_what_they_made_and_the_list_goes_last() {
        let path = std::env::temp_dir().join(format!("sampan-plan-{}", std::process::id()));
        drop(std::fs::remove_file(&path));
        let journal = Journal::open(&path).unwrap();
        let made = |path: &str| Change::File { path: path.into() };
        journal.record(made("/first")).unwrap();
        journal.record(made("/second")).unwrap();
        let all = Found {
            installed: Some(Installed {
                manager: Manager::Systemd,
                data_dir: "/d".into(),
                files: vec!["/bin/sampan".into()],
                directories: vec!["/etc/sampan".into()],
                packages: vec!["runc".into()],
            }),
            sampan: Some(7),
            runtime: vec![Process::new(8, &["containerd"])],
            shims: vec![Process::new(9, &["containerd-shim-runc-v2"])],
            mounts: vec!["/d/a/b".into(), "/d/a".into()],
            journal: Some(journal),
            data: true,
            ..found()
        };
        let steps = plan(&all, false);
        let expected = [
            Step::StopService(Manager::Systemd),
            Step::StopSampan(7),
            Step::EndRuntime(8),
            Step::EndContainers(1),
            Step::Unmount("/d/a/b".into()),
            Step::Unmount("/d/a".into()),
            Step::Undo(made("/second")),
            Step::Undo(made("/first")),
        ];
        assert_eq!(steps[..expected.len()], expected);
        assert!(matches!(steps[expected.len()], Step::Keep { .. }));
        let files: Vec<_> = steps
            .iter()
            .filter(|step| matches!(step, Step::RemoveFile(_)))
            .collect();
        assert_eq!(files[1], &Step::RemoveFile(INSTALLED.into()));
        assert!(matches!(steps.last(), Some(Step::Tell(text)) if text.contains("runc")));
        let purged = plan(&all, true);
        assert!(purged.contains(&Step::Purge("/d".into())));
        std::fs::remove_file(path).unwrap();
    }
}
