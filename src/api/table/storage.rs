//! Volumes, claims, classes, drivers.

use serde_json::Value;

use super::service::with_default;
use super::{AGE, Column, Item, Printer, Row, boolean, number, plain, printer_of, text, wide};
use crate::meta;

const GROUP: &str = "storage.k8s.io";

pub(super) const KINDS: &[Row] = &[
    ("", "PersistentVolume", &VOLUME),
    ("", "PersistentVolumeClaim", &CLAIM),
    (GROUP, "CSIDriver", &DRIVER),
    (GROUP, "CSINode", &CSI_NODE),
    (GROUP, "CSIStorageCapacity", &CAPACITY),
    (GROUP, "StorageClass", &CLASS),
    (GROUP, "VolumeAttachment", &ATTACHMENT),
    (GROUP, "VolumeAttributesClass", &ATTRIBUTES_CLASS),
];

/// `RWO,ROX`, in upstream's order, each once.
fn access_modes(modes: &[Value]) -> String {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .iter()
    .filter(|(mode, _)| has(mode))
    .map(|(_, short)| *short)
    .collect::<Vec<_>>()
    .join(",")
}

/// The class, from the annotation of old if it is there.
fn class(item: &Item<'_>) -> Value {
    let old = [
        "metadata",
        "annotations",
        "volume.beta.kubernetes.io/storage-class",
    ];
    match meta::text(item.object, &old) {
        "" => item.text(&["spec", "storageClassName"]),
        class => class.into(),
    }
}

fn phase(item: &Item<'_>) -> Value {
    if item.is_deleting() {
        "Terminating".into()
    } else {
        item.text(&["status", "phase"])
    }
}

static VOLUME: Printer = printer_of(
    &[
        text("Capacity"),
        text("Access Modes"),
        text("Reclaim Policy"),
        text("Status"),
        text("Claim"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        text("Reason"),
        AGE,
        wide("VolumeMode"),
    ],
    |item| {
        let claim = meta::at(item.object, &["spec", "claimRef"]);
        let claim = if claim.is_null() {
            String::new()
        } else {
            let part = |key: &str| meta::text(claim, &[key]);
            format!("{}/{}", part("namespace"), part("name"))
        };
        vec![
            item.text_or(&["spec", "capacity", "storage"], "0"),
            access_modes(item.items(&["spec", "accessModes"])).into(),
            item.text(&["spec", "persistentVolumeReclaimPolicy"]),
            phase(item),
            claim.into(),
            class(item),
            item.text_or(&["spec", "volumeAttributesClassName"], "<unset>"),
            item.text(&["status", "reason"]),
            item.age(),
            item.text_or(&["spec", "volumeMode"], "<unset>"),
        ]
    },
);

static CLAIM: Printer = printer_of(
    &[
        text("Status"),
        text("Volume"),
        text("Capacity"),
        text("Access Modes"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        AGE,
        wide("VolumeMode"),
    ],
    |item| {
        let volume = item.text(&["spec", "volumeName"]);
        let (capacity, modes) = if volume == "" {
            ("".into(), String::new())
        } else {
            (
                item.text_or(&["status", "capacity", "storage"], "0"),
                access_modes(item.items(&["status", "accessModes"])),
            )
        };
        vec![
            phase(item),
            volume,
            capacity,
            modes.into(),
            class(item),
            item.text_or(&["spec", "volumeAttributesClassName"], "<unset>"),
            item.age(),
            item.text_or(&["spec", "volumeMode"], "<unset>"),
        ]
    },
);

static CLASS: Printer = Printer {
    columns: &[
        text("Provisioner"),
        text("ReclaimPolicy"),
        text("VolumeBindingMode"),
        text("AllowVolumeExpansion"),
        AGE,
    ],
    cells: |item| {
        vec![
            item.text(&["provisioner"]),
            item.text_or(&["reclaimPolicy"], "Delete"),
            item.text_or(&["volumeBindingMode"], "Immediate"),
            item.boolean_or(&["allowVolumeExpansion"], false),
            item.age(),
        ]
    },
    name_last: false,
    name: |object| {
        with_default(
            object,
            &[
                "storageclass.kubernetes.io/is-default-class",
                "storageclass.beta.kubernetes.io/is-default-class",
            ],
        )
    },
};

static ATTRIBUTES_CLASS: Printer = printer_of(&[text("DriverName"), AGE], |item| {
    vec![item.text(&["driverName"]), item.age()]
});

static ATTACHMENT: Printer = printer_of(
    &[
        Column {
            format: "name",
            ..text("Attacher")
        },
        text("PV"),
        text("Node"),
        boolean("Attached"),
        AGE,
    ],
    |item| {
        vec![
            item.text(&["spec", "attacher"]),
            item.text(&["spec", "source", "persistentVolumeName"]),
            item.text(&["spec", "nodeName"]),
            item.boolean_or(&["status", "attached"], false),
            item.age(),
        ]
    },
);

static CSI_NODE: Printer = printer_of(&[number("Drivers"), AGE], |item| {
    vec![item.count(&["spec", "drivers"]), item.age()]
});

static CAPACITY: Printer = printer_of(&[text("StorageClassName"), text("Capacity")], |item| {
    let capacity = match meta::get(item.object, "capacity") {
        Value::Null => "<unset>".to_owned(),
        value => plain(value),
    };
    vec![item.text(&["storageClassName"]), capacity.into()]
});

static DRIVER: Printer = printer_of(
    &[
        boolean("AttachRequired"),
        boolean("PodInfoOnMount"),
        boolean("StorageCapacity"),
        text("TokenRequests"),
        boolean("RequiresRepublish"),
        text("Modes"),
        AGE,
    ],
    |item| {
        let flag = |key: &str, absent: bool| item.boolean_or(&["spec", key], absent);
        let requests = match meta::at(item.object, &["spec", "tokenRequests"]) {
            Value::Array(requests) => requests
                .iter()
                .map(|request| meta::text(request, &["audience"]))
                .collect::<Vec<_>>()
                .join(","),
            _ => "<unset>".to_owned(),
        };
        let modes: Vec<&str> = item
            .items(&["spec", "volumeLifecycleModes"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let modes = if modes.is_empty() {
            "<none>".to_owned()
        } else {
            modes.join(",")
        };
        vec![
            flag("attachRequired", true),
            flag("podInfoOnMount", false),
            flag("storageCapacity", false),
            requests.into(),
            flag("requiresRepublish", false),
            modes.into(),
            item.age(),
        ]
    },
);
