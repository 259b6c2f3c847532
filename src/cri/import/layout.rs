//! Finds the images inside an archive: an OCI layout (`index.json`) or what `docker save` writes (`manifest.json`).

use super::Error;
use super::archive::Archive;
use super::bundle::{Bundle, Data, Image, Manifest};
use super::oci::{self, ConfigDocument, Descriptor, DockerImage, Index, ManifestDocument};
use super::reference;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Manifests, indexes and configurations are documents, not payload.
const DOCUMENT_LIMIT: u64 = 8 << 20;
/// Indexes may point to indexes, but not for ever.
const DEPTH: usize = 4;

/// Reads the archive at `path`. Blocks on the disk.
pub fn read(path: &Path, scratch: &Path) -> Result<Bundle, Error> {
    let archive = Archive::open(path, scratch)?;
    let mut reader = Reader {
        path: path.to_owned(),
        archive,
        bundle: Bundle::default(),
    };
    if let Some(data) = reader.archive.get("index.json") {
        let index: Index = reader.document(&data, "index.json")?;
        reader.add_layout(&index)?;
    }
    if reader.bundle.images.is_empty()
        && let Some(data) = reader.archive.get("manifest.json")
    {
        let images: Vec<DockerImage> = reader.document(&data, "manifest.json")?;
        reader.add_docker(&images)?;
    }
    if reader.bundle.images.is_empty() {
        return Err(Error::NoImage {
            path: path.to_owned(),
        });
    }
    Ok(reader.bundle)
}

struct Reader {
    path: PathBuf,
    archive: Archive,
    bundle: Bundle,
}

/// A manifest and the indexes passed on the way to it, outermost first.
type Found = (Manifest, Vec<(Descriptor, Vec<Descriptor>)>);

impl Reader {
    fn add_layout(&mut self, index: &Index) -> Result<(), Error> {
        for target in &index.manifests {
            let Some(name) = name_of(target) else {
                continue;
            };
            if let Some((manifest, indexes)) = self.find(target, DEPTH)? {
                self.bundle.images.push(Image {
                    name,
                    target: plain(target),
                    indexes,
                    manifest,
                });
            }
        }
        Ok(())
    }

    /// The manifest for this machine at or below `target`, if the archive holds it.
    fn find(&mut self, target: &Descriptor, depth: usize) -> Result<Option<Found>, Error> {
        if target.platform.as_ref().is_some_and(|p| !p.is_host()) {
            return Ok(None);
        }
        let Some(data) = self.blob(&target.digest) else {
            return Ok(None);
        };
        if target.is_manifest() {
            let manifest = self.manifest(target, data)?;
            return Ok(manifest.map(|manifest| (manifest, Vec::new())));
        }
        if !target.is_index() || depth == 0 {
            return Ok(None);
        }
        let index: Index = self.document(&data, &target.digest)?;
        self.bundle.blobs.insert(target.digest.clone(), data);
        for child in &index.manifests {
            if let Some((manifest, mut indexes)) = self.find(child, depth - 1)? {
                indexes.insert(0, (plain(target), vec![plain(child)]));
                return Ok(Some((manifest, indexes)));
            }
        }
        Ok(None)
    }

    fn manifest(&mut self, target: &Descriptor, data: Data) -> Result<Option<Manifest>, Error> {
        let document: ManifestDocument = self.document(&data, &target.digest)?;
        let Some(config_data) = self.blob(&document.config.digest) else {
            return Err(self.malformed(format!("blob {} is missing", document.config.digest)));
        };
        let config: ConfigDocument = self.document(&config_data, &document.config.digest)?;
        if !config.architecture.is_empty() && config.architecture != oci::host_architecture() {
            return Ok(None);
        }
        if config.rootfs.diff_ids.len() != document.layers.len() {
            // Not an image but some other artifact.
            return Ok(None);
        }
        for layer in &document.layers {
            // A layer that is not here may be in the runtime already.
            if let Some(data) = self.blob(&layer.digest) {
                self.bundle.blobs.insert(layer.digest.clone(), data);
            }
        }
        self.bundle.blobs.insert(target.digest.clone(), data);
        self.bundle
            .blobs
            .insert(document.config.digest.clone(), config_data);
        Ok(Some(Manifest {
            descriptor: plain(target),
            config: plain(&document.config),
            layers: document.layers.iter().map(plain).collect(),
            diff_ids: config.rootfs.diff_ids,
        }))
    }

    fn add_docker(&mut self, images: &[DockerImage]) -> Result<(), Error> {
        for image in images {
            let names = image.repo_tags.as_deref().unwrap_or_default();
            if names.is_empty() {
                continue;
            }
            let Some(manifest) = self.docker_manifest(image)? else {
                continue;
            };
            for name in names {
                self.bundle.images.push(Image {
                    name: reference::normalize(name),
                    target: manifest.descriptor.clone(),
                    indexes: Vec::new(),
                    manifest: manifest.clone(),
                });
            }
        }
        Ok(())
    }

    /// `docker save` has no manifest in a registry's form: one is made from the parts.
    fn docker_manifest(&mut self, image: &DockerImage) -> Result<Option<Manifest>, Error> {
        let data = self.member(&image.config)?;
        let document: ConfigDocument = self.document(&data, &image.config)?;
        if !document.architecture.is_empty() && document.architecture != oci::host_architecture() {
            return Ok(None);
        }
        let config = self.add_member(oci::DOCKER_CONFIG, data)?;
        let mut layers = Vec::with_capacity(image.layers.len());
        for name in &image.layers {
            let data = self.member(name)?;
            let compressed = data
                .read_at(0, 2)
                .is_ok_and(|head| head.as_ref() == [0x1f, 0x8b]);
            let media_type = if compressed {
                format!("{}.gzip", oci::DOCKER_LAYER)
            } else {
                oci::DOCKER_LAYER.to_owned()
            };
            layers.push(self.add_member(&media_type, data)?);
        }
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": oci::DOCKER_MANIFEST,
            "config": config,
            "layers": layers,
        });
        let descriptor = self
            .bundle
            .add(oci::DOCKER_MANIFEST, manifest.to_string().into());
        Ok(Some(Manifest {
            descriptor,
            config,
            layers,
            diff_ids: document.rootfs.diff_ids,
        }))
    }

    fn add_member(&mut self, media_type: &str, data: Data) -> Result<Descriptor, Error> {
        let digest = data.digest().map_err(|source| self.read_error(source))?;
        let descriptor = Descriptor {
            media_type: media_type.to_owned(),
            digest: digest.clone(),
            size: data.size(),
            ..Descriptor::default()
        };
        self.bundle.blobs.insert(digest, data);
        Ok(descriptor)
    }

    fn member(&self, name: &str) -> Result<Data, Error> {
        self.archive
            .get(name)
            .ok_or_else(|| self.malformed(format!("{name} is missing")))
    }

    fn blob(&self, digest: &str) -> Option<Data> {
        let (algorithm, hex) = digest.split_once(':')?;
        self.archive.get(&format!("blobs/{algorithm}/{hex}"))
    }

    fn document<T: DeserializeOwned>(&self, data: &Data, name: &str) -> Result<T, Error> {
        let bytes = data
            .read_all(DOCUMENT_LIMIT)
            .map_err(|source| self.read_error(source))?;
        serde_json::from_slice(&bytes).map_err(|error| self.malformed(format!("{name}: {error}")))
    }

    fn malformed(&self, problem: String) -> Error {
        Error::Malformed {
            path: self.path.clone(),
            problem,
        }
    }

    fn read_error(&self, source: std::io::Error) -> Error {
        Error::Read {
            path: self.path.clone(),
            source,
        }
    }
}

/// containerd and newer Docker write the whole name; the OCI annotation may be the whole name or only a tag.
fn name_of(target: &Descriptor) -> Option<String> {
    let whole = target.annotations.get("io.containerd.image.name");
    let oci = target
        .annotations
        .get("org.opencontainers.image.ref.name")
        .filter(|name| reference::is_full_name(name));
    whole.or(oci).map(|name| reference::normalize(name))
}

/// Only what identifies content: names and platforms stay out of the runtime's records.
fn plain(descriptor: &Descriptor) -> Descriptor {
    Descriptor {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.clone(),
        size: descriptor.size,
        ..Descriptor::default()
    }
}

#[cfg(test)]
mod tests;
