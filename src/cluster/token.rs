//! The cluster's join token: given by the user, or made at the first start, then kept.

use std::path::Path;

use sampan_config::Settings;
use sampan_pki::JoinToken;
use sampan_pki::files::{self, PRIVATE};

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read the token file {path}: {source}")]
    File {
        path: String,
        source: std::io::Error,
    },
    #[error("--token and --token-file were both given; leave one out")]
    Both,
    #[error(transparent)]
    Pki(#[from] sampan_pki::Error),
}

/// What the user gave, if anything.
pub fn given(settings: &Settings) -> Result<Option<String>, TokenError> {
    match (&settings.token, &settings.token_file) {
        (Some(_), Some(_)) => Err(TokenError::Both),
        (Some(token), None) => Ok(Some(token.trim().to_owned())),
        (None, Some(path)) => sampan_util::file::read_text(path)
            .map(|text| Some(text.trim().to_owned()))
            .map_err(|source| TokenError::File {
                path: path.display().to_string(),
                source,
            }),
        (None, None) => Ok(None),
    }
}

/// The password of this server's cluster. The full token, with the hash of the CA, is written to `server/token` and
/// `server/node-token` so that it can be copied from there.
pub fn ensure(settings: &Settings, authority_pem: &str) -> Result<String, TokenError> {
    let dir = settings.server_dir();
    let kept = files::read_optional(&dir.join("token"))?;
    let password = match given(settings)?.or(kept) {
        Some(text) => JoinToken::parse(&text)?.password,
        None => sampan_pki::join::random_password()?,
    };
    write(
        &dir,
        "token",
        &JoinToken::new(authority_pem, "server", &password),
    )?;
    write(
        &dir,
        "node-token",
        &JoinToken::new(authority_pem, "node", &password),
    )?;
    Ok(password)
}

fn write(dir: &Path, name: &str, token: &JoinToken) -> Result<(), sampan_pki::Error> {
    let text = format!("{}\n", token.format());
    let path = dir.join(name);
    if files::read_optional(&path)?.as_deref() == Some(text.as_str()) {
        return Ok(());
    }
    files::write_atomic(&path, text.as_bytes(), PRIVATE)
}
