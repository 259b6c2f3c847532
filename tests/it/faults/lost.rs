//! A running server whose database is removed or replaced under it.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::support::process::ControlPlane;
use crate::support::rest::{CONFIG_MAPS, NAMESPACES, Rest};
use crate::support::{attempt, eventually};

const NAMESPACE: &str = "lost";

fn map(name: &str) -> serde_json::Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": name}})
}

/// Writes until one is refused; how many were acknowledged. All the later ones must be refused, too.
async fn write_until_refused(rest: &Rest, round: &str, path: &Path) -> (u32, u32) {
    let (mut acknowledged, mut refused) = (0, 0);
    for number in 0..20 {
        match rest
            .create(CONFIG_MAPS, map(&format!("{round}-{number}")))
            .await
        {
            Ok(_) if refused == 0 => acknowledged += 1,
            Ok(_) => panic!("{round}-{number} was acknowledged after a refusal"),
            Err(error) => {
                let status = error.status().expect("a Status").clone();
                let names_file = status.message.contains(&path.display().to_string());
                assert!(status.code == 500 && names_file, "{status:?}");
                refused += 1;
            }
        }
    }
    (acknowledged, refused)
}

#[test]
fn a_database_that_was_removed_or_replaced_takes_nothing_more() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut plane = ControlPlane::start(&[]);
    let folder = plane.sampan.data_dir.join("server/db");
    let database = folder.join("state.db");
    let file = |suffix: &str| folder.join(format!("state.db{suffix}"));
    let mut kept = 0;
    let mut all_refused = 0;
    for round in ["removed", "replaced"] {
        let rest = Rest::admin(&plane, NAMESPACE);
        let (acknowledged, refused, listed) = runtime.block_on(async {
            let namespace =
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}});
            // There already in the second round.
            let _ = rest.create(NAMESPACES, namespace).await;
            for number in 0..50 {
                let name = format!("before-{round}-{number}");
                rest.create(CONFIG_MAPS, map(&name)).await.unwrap();
            }
            std::fs::remove_file(&database).unwrap();
            if round == "replaced" {
                std::fs::write(&database, "something else").unwrap();
            }
            let (acknowledged, refused) = write_until_refused(&rest, round, &database).await;
            let listed = rest.list(CONFIG_MAPS).await.unwrap().items.len();
            (acknowledged, refused, listed)
        });
        assert_eq!(acknowledged, 0, "written into a file that is gone");
        all_refused += refused;
        kept += 50;
        assert!(listed >= kept, "reads go on: {listed}");
        let unready = attempt(&mut plane.sampan.kubectl("get --raw /readyz")).unwrap_err();
        assert!(unready.contains("[-]etcd failed"), "{unready}");
        let why = attempt(&mut plane.sampan.kubectl("get --raw /readyz/etcd")).unwrap_err();
        assert!(why.contains(&database.display().to_string()), "{why}");
        // What the log says is done, and everything that was acknowledged is there.
        let log = std::fs::read_to_string(&plane.sampan.log).unwrap();
        let rescued = file(".rescued");
        assert!(
            log.contains(&format!("was saved in {}", rescued.display())),
            "{log}"
        );
        plane.sampan.terminate();
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(file(suffix));
        }
        std::fs::rename(&rescued, &database).unwrap();
        plane.start_again();
        plane.wait_ready();
        let rest = Rest::admin(&plane, NAMESPACE);
        let names: Vec<String> = runtime.block_on(async {
            let list = rest.list(CONFIG_MAPS).await.unwrap();
            let names = list.items.iter().map(|item| format!("{item:?}"));
            names.collect()
        });
        let found = names.iter().filter(|name| name.contains("before-")).count();
        assert_eq!(found, kept, "after {round}");
    }
    eventually("it takes writes again", Duration::from_secs(10), || {
        attempt(&mut plane.sampan.kubectl("create configmap last"))
    });
    println!(
        "database lost: removed and replaced while in use; {all_refused} writes refused with the file's name, 0 acknowledged, \
         readyz failed with [-]etcd, after what the log says all {kept} objects are there"
    );
}
