//! From trees to what the store keeps: encoding and, for Secrets, encryption.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::ResourceDef;
use sampan_store::{Attachment, Key};
use serde_json::Value;

use super::object::{Field, Selectable, encode};
use crate::encryption::{self, Keyring};

/// What the writer knows already and the cache need not work out again.
pub struct Prepared {
    /// The stored form before encryption.
    pub plain: Bytes,
    pub selectable: Selectable,
}

/// Encodes and, where the row asks for it, encrypts.
pub struct StorageCodec {
    keys: Keyring,
}

/// A value ready to be committed.
pub struct Sealed {
    pub value: Bytes,
    /// The stored form before encryption.
    pub plain: Bytes,
    pub attachment: Attachment,
}

impl StorageCodec {
    pub fn new(keys: Keyring) -> Self {
        Self { keys }
    }

    pub fn seal(
        &self,
        def: &ResourceDef,
        fields: &[Field],
        key: &Key,
        object: &Value,
    ) -> Result<Sealed, Error> {
        let plain = Bytes::from(encode(object)?);
        let selectable = Selectable::of_value(object, fields);
        let value = if is_secret(def) {
            Bytes::from(self.keys.seal(key.as_bytes(), &plain)?)
        } else {
            plain.clone()
        };
        Ok(Sealed {
            value,
            plain: plain.clone(),
            attachment: Arc::new(Prepared { plain, selectable }),
        })
    }

    /// What a deletion shows, as an attachment.
    pub fn plain(&self, object: &Value) -> Result<Attachment, Error> {
        Ok(Arc::new(Prepared {
            plain: Bytes::from(encode(object)?),
            selectable: Selectable::default(),
        }))
    }

    /// The plain form of a stored value.
    pub fn open<'a>(
        &self,
        key: &str,
        value: &'a [u8],
    ) -> Result<std::borrow::Cow<'a, [u8]>, Error> {
        Ok(self.keys.open(key.as_bytes(), value)?)
    }
}

/// Rows whose objects are encrypted at rest.
fn is_secret(def: &ResourceDef) -> bool {
    def.kind == "Secret" && def.group().is_empty()
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot encode the object: {0}")]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Encryption(#[from] encryption::Error),
}
