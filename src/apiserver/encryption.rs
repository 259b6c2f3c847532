//! Encryption at rest: values are sealed with AES-256-GCM, bound to their key.
//!
//! A sealed value is `sampan:enc:v1:KEYID:` + nonce + ciphertext and tag. Plain values start with
//! `{`, so both can stand side by side while keys are introduced or rotated. The key file holds
//! one key a line, `KEYID BASE64`; the first one seals, all of them open.

use std::borrow::Cow;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

const PREFIX: &[u8] = b"sampan:enc:v1:";
const FILE: &str = "encryption-keys";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: line {line} is no encryption key (ID BASE64)")]
    Malformed { path: PathBuf, line: usize },
    #[error("the value is sealed with key {id:?}, which is not in the key file")]
    UnknownKey { id: String },
    #[error("the sealed value cannot be opened: it was changed, or moved to another key")]
    Open,
    #[error("no randomness from the system")]
    Random,
}

struct Named {
    id: String,
    key: LessSafeKey,
}

/// The keys of a cluster; without any, values stay plain.
#[derive(Default)]
pub struct Keyring {
    keys: Vec<Named>,
    random: Option<SystemRandom>,
}

impl Keyring {
    /// Seals nothing; opens plain values only.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Reads `encryption-keys` in `directory`, or makes it with one new key.
    pub fn load_or_create(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(FILE);
        let text = match sampan_util::file::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(directory, &path)?,
            Err(source) => return Err(Error::File { path, source }),
        };
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let named = parse(line).ok_or_else(|| Error::Malformed {
                path: path.clone(),
                line: index + 1,
            })?;
            keys.push(named);
        }
        Ok(Self {
            keys,
            random: Some(SystemRandom::new()),
        })
    }

    pub fn seal(&self, context: &[u8], plain: &[u8]) -> Result<Vec<u8>, Error> {
        let (Some(named), Some(random)) = (self.keys.first(), &self.random) else {
            return Ok(plain.to_vec());
        };
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut nonce).map_err(|_| Error::Random)?;
        let mut body = plain.to_vec();
        named
            .key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(context),
                &mut body,
            )
            .map_err(|_| Error::Open)?;
        let mut sealed =
            Vec::with_capacity(PREFIX.len() + named.id.len() + 1 + nonce.len() + body.len());
        sealed.extend_from_slice(PREFIX);
        sealed.extend_from_slice(named.id.as_bytes());
        sealed.push(b':');
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    pub fn open<'a>(&self, context: &[u8], value: &'a [u8]) -> Result<Cow<'a, [u8]>, Error> {
        let Some(rest) = value.strip_prefix(PREFIX) else {
            return Ok(Cow::Borrowed(value));
        };
        let end = rest
            .iter()
            .position(|byte| *byte == b':')
            .ok_or(Error::Open)?;
        let (id, rest) = (&rest[..end], &rest[end + 1..]);
        let named = self
            .keys
            .iter()
            .find(|named| named.id.as_bytes() == id)
            .ok_or_else(|| Error::UnknownKey {
                id: String::from_utf8_lossy(id).into_owned(),
            })?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>().ok_or(Error::Open)?;
        let mut body = body.to_vec();
        let length = named
            .key
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(context),
                &mut body,
            )
            .map_err(|_| Error::Open)?
            .len();
        body.truncate(length);
        Ok(Cow::Owned(body))
    }
}

fn parse(line: &str) -> Option<Named> {
    let (id, key) = line.trim().split_once(' ')?;
    let key = STANDARD.decode(key.trim()).ok()?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).ok()?);
    let plain_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain_id.then(|| Named {
        id: id.to_owned(),
        key,
    })
}

fn create(directory: &Path, path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File {
        path: path.to_owned(),
        source,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed)?;
    let mut secret = [0; 32];
    let mut id = [0; 4];
    let random = SystemRandom::new();
    random.fill(&mut secret).map_err(|_| Error::Random)?;
    random.fill(&mut id).map_err(|_| Error::Random)?;
    let text = format!(
        "{:08x} {}\n",
        u32::from_be_bytes(id),
        STANDARD.encode(secret)
    );
    // Written aside first: a key file that is cut short would lose every secret.
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)?;
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn seals_bound_to_the_key_and_reads_plain_values() {
        let directory = std::env::temp_dir().join(format!("sampan-keys-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let ring = Keyring::load_or_create(&directory).unwrap();
        let mode = std::fs::metadata(directory.join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let sealed = ring.seal(b"/a", b"{secret}").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        let again = Keyring::load_or_create(&directory).unwrap();
        assert_eq!(&*again.open(b"/a", &sealed).unwrap(), b"{secret}");
        assert!(matches!(again.open(b"/b", &sealed), Err(Error::Open)));
        assert_eq!(&*again.open(b"/b", b"{}").unwrap(), b"{}");
        assert!(matches!(
            Keyring::plain().open(b"/a", &sealed),
            Err(Error::UnknownKey { .. })
        ));
        let mut changed = sealed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(matches!(again.open(b"/a", &changed), Err(Error::Open)));
        let _ = std::fs::remove_dir_all(&directory);
    }
}
