//! What runs pods.

use serde_json::Value;

use super::{AGE, Item, Printer, Row, boolean, human_duration, number, printer_of, text, wide};
use crate::{meta, time};

pub(super) const KINDS: &[Row] = &[
    ("", "ReplicationController", &CONTROLLER),
    ("apps", "ControllerRevision", &REVISION),
    ("apps", "DaemonSet", &DAEMON_SET),
    ("apps", "Deployment", &DEPLOYMENT),
    ("apps", "ReplicaSet", &REPLICA_SET),
    ("apps", "StatefulSet", &STATEFUL_SET),
    ("batch", "CronJob", &CRON_JOB),
    ("batch", "Job", &JOB),
];

const TEMPLATE: &[&str] = &["spec", "template", "spec", "containers"];

/// `have/want` replicas.
fn ready(item: &Item<'_>) -> Value {
    let have = item.integer(&["status", "readyReplicas"]);
    format!("{have}/{}", item.integer(&["spec", "replicas"])).into()
}

static DEPLOYMENT: Printer = printer_of(
    &[
        text("Ready"),
        text("Up-to-date"),
        text("Available"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    |item| {
        let [names, images] = item.containers(TEMPLATE);
        vec![
            ready(item),
            item.number(&["status", "updatedReplicas"]),
            item.number(&["status", "availableReplicas"]),
            item.age(),
            names,
            images,
            item.selector(&["spec", "selector"]),
        ]
    },
);

fn replicas(item: &Item<'_>, selector: Value) -> Vec<Value> {
    let [names, images] = item.containers(TEMPLATE);
    vec![
        item.number(&["spec", "replicas"]),
        item.number(&["status", "replicas"]),
        item.number(&["status", "readyReplicas"]),
        item.age(),
        names,
        images,
        selector,
    ]
}

const REPLICAS: &[super::Column] = &[
    number("Desired"),
    number("Current"),
    number("Ready"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];

static REPLICA_SET: Printer = printer_of(REPLICAS, |item| {
    replicas(item, item.selector(&["spec", "selector"]))
});

static CONTROLLER: Printer = printer_of(REPLICAS, |item| {
    replicas(item, item.labels(&["spec", "selector"]))
});

static STATEFUL_SET: Printer = printer_of(
    &[text("Ready"), AGE, wide("Containers"), wide("Images")],
    |item| {
        let [names, images] = item.containers(TEMPLATE);
        vec![ready(item), item.age(), names, images]
    },
);

static DAEMON_SET: Printer = printer_of(
    &[
        number("Desired"),
        number("Current"),
        number("Ready"),
        number("Up-to-date"),
        number("Available"),
        text("Node Selector"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    |item| {
        let [names, images] = item.containers(TEMPLATE);
        let status = |key: &str| item.number(&["status", key]);
        vec![
            status("desiredNumberScheduled"),
            status("currentNumberScheduled"),
            status("numberReady"),
            status("updatedNumberScheduled"),
            status("numberAvailable"),
            item.labels(&["spec", "template", "spec", "nodeSelector"]),
            item.age(),
            names,
            images,
            item.selector(&["spec", "selector"]),
        ]
    },
);

static REVISION: Printer = printer_of(&[text("Controller"), text("Revision"), AGE], |item| {
    let owner = item
        .items(&["metadata", "ownerReferences"])
        .iter()
        .find(|owner| meta::boolean(owner, &["controller"]));
    let controller = owner.map_or_else(
        || "<none>".to_owned(),
        |owner| {
            let kind = meta::text(owner, &["kind"]).to_lowercase();
            let name = meta::text(owner, &["name"]);
            match meta::text(owner, &["apiVersion"]).split_once('/') {
                Some((group, _)) => format!("{kind}.{group}/{name}"),
                None => format!("{kind}/{name}"),
            }
        },
    );
    vec![controller.into(), item.number(&["revision"]), item.age()]
});

static JOB: Printer = printer_of(
    &[
        text("Status"),
        text("Completions"),
        text("Duration"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    |item| {
        let [names, images] = item.containers(TEMPLATE);
        vec![
            job_status(item).into(),
            completions(item).into(),
            job_duration(item).into(),
            item.age(),
            names,
            images,
            item.selector(&["spec", "selector"]),
        ]
    },
);

fn job_status(item: &Item<'_>) -> &'static str {
    if item.has_condition("Complete") {
        "Complete"
    } else if item.has_condition("Failed") {
        "Failed"
    } else if item.is_deleting() {
        "Terminating"
    } else if item.has_condition("Suspended") {
        "Suspended"
    } else if item.has_condition("FailureTarget") {
        "FailureTarget"
    } else if item.has_condition("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(item: &Item<'_>) -> String {
    let succeeded = item.integer(&["status", "succeeded"]);
    match meta::integer(item.object, &["spec", "completions"]) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match item.integer(&["spec", "parallelism"]) {
            parallelism if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    }
}

fn job_duration(item: &Item<'_>) -> String {
    let at = |key: &str| time::parse(meta::text(item.object, &["status", key]));
    let Some(start) = at("startTime") else {
        return String::new();
    };
    let end = at("completionTime").unwrap_or(item.now);
    human_duration(end.as_second() - start.as_second())
}

static CRON_JOB: Printer = printer_of(
    &[
        text("Schedule"),
        text("Timezone"),
        boolean("Suspend"),
        number("Active"),
        text("Last Schedule"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    |item| {
        let template = [
            "spec",
            "jobTemplate",
            "spec",
            "template",
            "spec",
            "containers",
        ];
        let [names, images] = item.containers(&template);
        let last = match meta::text(item.object, &["status", "lastScheduleTime"]) {
            "" => "<none>".to_owned(),
            at => item.since_text(at),
        };
        let suspend = match meta::at(item.object, &["spec", "suspend"]).as_bool() {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        };
        vec![
            item.text(&["spec", "schedule"]),
            item.text_or(&["spec", "timeZone"], "<none>"),
            suspend.into(),
            item.count(&["status", "active"]),
            last.into(),
            item.age(),
            names,
            images,
            item.selector(&["spec", "jobTemplate", "spec", "selector"]),
        ]
    },
);
