//! Images ready to be written: what they are called, what they consist of, where the bytes are.

use super::oci::{self, Descriptor};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where a blob's bytes lie.
#[derive(Debug, Clone)]
pub enum Data {
    Memory(Bytes),
    /// A stretch of an (uncompressed) archive.
    File {
        file: Arc<File>,
        offset: u64,
        size: u64,
    },
}

/// One image for this machine's platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    /// What the name points at: the manifest, or the index above it.
    pub target: Descriptor,
    /// Indexes between the name and the manifest, each with the manifests and indexes that are here.
    pub indexes: Vec<(Descriptor, Vec<Descriptor>)>,
    pub manifest: Manifest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub descriptor: Descriptor,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
    /// Digest of each layer once uncompressed.
    pub diff_ids: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Bundle {
    pub images: Vec<Image>,
    /// By digest.
    pub blobs: BTreeMap<String, Data>,
}

impl Data {
    pub fn size(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { size, .. } => *size,
        }
    }

    /// Up to `limit` bytes from `offset`; empty at the end. Blocks on the disk.
    pub fn read_at(&self, offset: u64, limit: usize) -> io::Result<Bytes> {
        let wanted = self.size().saturating_sub(offset).min(limit as u64) as usize;
        match self {
            Self::Memory(bytes) => {
                let start = bytes.len().min(offset as usize);
                Ok(bytes.slice(start..start + wanted))
            }
            Self::File {
                file, offset: base, ..
            } => {
                let mut buffer = vec![0; wanted];
                file.read_exact_at(&mut buffer, base + offset)?;
                Ok(buffer.into())
            }
        }
    }

    pub fn read_all(&self, limit: u64) -> io::Result<Bytes> {
        if self.size() > limit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} bytes where at most {limit} are expected", self.size()),
            ));
        }
        self.read_at(0, limit as usize)
    }

    pub(crate) fn digest(&self) -> io::Result<String> {
        const STEP: usize = 1 << 20;
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        let mut offset = 0;
        loop {
            let chunk = self.read_at(offset, STEP)?;
            if chunk.is_empty() {
                return Ok(oci::format_digest(&context.finish()));
            }
            offset += chunk.len() as u64;
            context.update(&chunk);
        }
    }
}

impl Bundle {
    /// An image made in memory: one uncompressed layer, configuration and manifest as given.
    pub fn from_memory(name: &str, layer: Bytes, config: &serde_json::Value) -> Self {
        let mut bundle = Self::default();
        let layer = bundle.add(oci::OCI_LAYER, layer);
        let config = bundle.add(oci::OCI_CONFIG, config.to_string().into());
        let document = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": oci::OCI_MANIFEST,
            "config": config,
            "layers": [layer],
        });
        let target = bundle.add(oci::OCI_MANIFEST, document.to_string().into());
        bundle.images.push(Image {
            name: name.to_owned(),
            target: target.clone(),
            indexes: Vec::new(),
            manifest: Manifest {
                descriptor: target,
                diff_ids: vec![layer.digest.clone()],
                config,
                layers: vec![layer],
            },
        });
        bundle
    }

    /// Adds a blob and says how to refer to it.
    pub fn add(&mut self, media_type: &str, bytes: Bytes) -> Descriptor {
        let digest = oci::digest(&bytes);
        let size = bytes.len() as u64;
        self.blobs.insert(digest.clone(), Data::Memory(bytes));
        Descriptor {
            media_type: media_type.to_owned(),
            digest,
            size,
            ..Descriptor::default()
        }
    }
}
