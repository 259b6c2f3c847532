#![allow(clippy::unwrap_used)]

use super::*;
use std::io::Write;

/// A tar file of plain members and (name, target) symbolic links.
fn tar(members: &[(&str, &[u8])], links: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, body) in members {
        out.extend(header(name, body.len(), b'0', ""));
        out.extend_from_slice(body);
        out.resize(out.len().div_ceil(512) * 512, 0);
    }
    for (name, target) in links {
        out.extend(header(name, 0, b'2', target));
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn header(name: &str, size: usize, kind: u8, link: &str) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..263].copy_from_slice(b"ustar\0");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn read_bytes(name: &str, bytes: &[u8]) -> Result<Bundle, Error> {
    let scratch = std::env::temp_dir();
    let path = scratch.join(format!("sampan-layout-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let result = read(&path, &scratch);
    std::fs::remove_file(&path).unwrap();
    result
}

const LAYER: &[u8] = b"not looked into";

fn config(architecture: &str) -> Vec<u8> {
    serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [oci::digest(LAYER)]},
    })
    .to_string()
    .into_bytes()
}

fn blob_path(bytes: &[u8]) -> String {
    format!("blobs/{}", oci::digest(bytes).replace(':', "/"))
}

/// A manifest over the one layer, and its descriptor.
fn manifest(config: &[u8]) -> (Vec<u8>, Descriptor) {
    let bytes = serde_json::json!({
        "schemaVersion": 2,
        "config": {"mediaType": oci::OCI_CONFIG, "digest": oci::digest(config), "size": config.len()},
        "layers": [{"mediaType": oci::OCI_LAYER, "digest": oci::digest(LAYER), "size": LAYER.len()}],
    })
    .to_string()
    .into_bytes();
    let descriptor = Descriptor {
        media_type: oci::OCI_MANIFEST.to_owned(),
        digest: oci::digest(&bytes),
        size: bytes.len() as u64,
        ..Descriptor::default()
    };
    (bytes, descriptor)
}

#[test]
fn layout_with_an_index_picks_this_machine() {
    let config = config(oci::host_architecture());
    let (bytes, mut here) = manifest(&config);
    here.platform = Some(oci::Platform {
        os: "linux".to_owned(),
        architecture: oci::host_architecture().to_owned(),
        variant: String::new(),
    });
    let mut other = here.clone();
    other.digest = oci::digest(b"absent");
    other.platform.as_mut().unwrap().architecture = "s390x".to_owned();
    let inner = serde_json::json!({"schemaVersion": 2, "manifests": [other, here]}).to_string();
    let index = serde_json::json!({"manifests": [{
        "mediaType": oci::OCI_INDEX, "digest": oci::digest(inner.as_bytes()), "size": inner.len(),
        "annotations": {"org.opencontainers.image.ref.name": "example.com/app:1"},
    }]})
    .to_string();
    let bundle = read_bytes(
        "oci.tar",
        &tar(
            &[
                ("./index.json", index.as_bytes()),
                (&blob_path(inner.as_bytes()), inner.as_bytes()),
                (&blob_path(&bytes), &bytes),
                (&blob_path(&config), &config),
                (&blob_path(LAYER), LAYER),
            ],
            &[],
        ),
    )
    .unwrap();
    let image = &bundle.images[0];
    assert_eq!(image.name, "example.com/app:1");
    assert_eq!(image.target.digest, oci::digest(inner.as_bytes()));
    assert_eq!(image.manifest.descriptor.digest, here.digest);
    assert_eq!(image.indexes[0].1[0].digest, here.digest);
    assert_eq!(bundle.blobs.len(), 4);
}

#[test]
fn docker_save_with_linked_layers_and_gzip() {
    let config = config(oci::host_architecture());
    let manifest = serde_json::json!([
        {"Config": "c.json", "RepoTags": ["app:1", "quay.io/me/app:1"], "Layers": ["b/layer.tar"]},
    ])
    .to_string();
    let plain = tar(
        &[
            ("a/layer.tar", LAYER),
            ("c.json", &config),
            ("manifest.json", manifest.as_bytes()),
        ],
        &[("b/layer.tar", "../a/layer.tar")],
    );
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&plain).unwrap();
    for (name, bytes) in [("d.tar", plain), ("d.tar.gz", packed.finish().unwrap())] {
        let bundle = read_bytes(name, &bytes).unwrap();
        let names: Vec<&str> = bundle.images.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["docker.io/library/app:1", "quay.io/me/app:1"]);
        let made = &bundle.images[0].manifest;
        assert_eq!(made.layers[0].digest, made.diff_ids[0]);
        assert!(bundle.blobs.contains_key(&made.descriptor.digest));
    }
}

#[test]
fn other_machines_and_garbage_are_named() {
    let config = config("s390x");
    let (bytes, mut target) = manifest(&config);
    target.annotations.insert(
        "io.containerd.image.name".to_owned(),
        "example.com/app:1".to_owned(),
    );
    let index = serde_json::json!({"manifests": [target]}).to_string();
    let archive = tar(
        &[
            ("index.json", index.as_bytes()),
            (&blob_path(&bytes), &bytes),
            (&blob_path(&config), &config),
        ],
        &[],
    );
    assert!(matches!(
        read_bytes("other.tar", &archive),
        Err(Error::NoImage { .. })
    ));
    assert!(matches!(
        read_bytes("garbage.tar", &[7; 2048]),
        Err(Error::Malformed { .. })
    ));
    assert!(matches!(
        read_bytes("cut.tar", &archive[..700]),
        Err(Error::Malformed { .. })
    ));
}
