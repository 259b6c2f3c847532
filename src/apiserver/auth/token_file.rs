//! Static tokens: those of a file (`token,user,uid,"group1,group2"`), and those that the server makes
//! for itself (join tokens, in-process identities of other programs).

use std::collections::HashMap;

use ring::digest;
use sampan_api::UserInfo;

/// Tokens by their hash, so that looking one up tells nothing about the others.
#[derive(Debug, Clone, Default)]
pub struct StaticTokens(HashMap<[u8; 32], UserInfo>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenFileError {
    #[error(
        "line {line}: a token, a user name and a uid are needed: token,user,uid[,\"group1,group2\"]"
    )]
    Columns { line: usize },
    #[error("line {line}: the token is empty")]
    Empty { line: usize },
    #[error("line {line}: a quoted field is not closed")]
    Quote { line: usize },
}

impl StaticTokens {
    /// Reads a token file.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = Self::default();
        for (index, row) in text.lines().enumerate() {
            let line = index + 1;
            let row = row.trim();
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let fields = split_csv(row).ok_or(TokenFileError::Quote { line })?;
            let [token, user, uid, rest @ ..] = fields.as_slice() else {
                return Err(TokenFileError::Columns { line });
            };
            if token.is_empty() {
                return Err(TokenFileError::Empty { line });
            }
            let groups: Vec<&str> = rest
                .first()
                .map(|groups| groups.split(',').map(str::trim).collect())
                .unwrap_or_default();
            let mut info = UserInfo::authenticated(user, &groups);
            info.groups.retain(|group| !group.is_empty());
            info.uid = uid.clone();
            tokens.insert(token, info);
        }
        Ok(tokens)
    }

    pub fn insert(&mut self, token: &str, user: UserInfo) {
        self.0.insert(hash(token), user);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn find(&self, token: &str) -> Option<&UserInfo> {
        self.0.get(&hash(token))
    }
}

pub(super) fn hash(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    out
}

/// The fields of one CSV line; `None` if a quote is left open.
fn split_csv(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let last = fields.last_mut()?;
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                last.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            ' ' if !quoted && last.is_empty() => {}
            other => last.push(other),
        }
    }
    (!quoted).then_some(fields)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_read() {
        let text = "admin-token,admin,admin-uid,\"system:masters\"\n\n# x\nbob-token,bob,bob-uid\n\
                    c, \"d\"\"e\", f, \"g, h\"\n";
        let tokens = StaticTokens::parse(text).unwrap();
        let admin = tokens.find("admin-token").unwrap();
        assert_eq!(
            (admin.username.as_str(), admin.uid.as_str()),
            ("admin", "admin-uid")
        );
        assert_eq!(admin.groups, ["system:masters", "system:authenticated"]);
        assert_eq!(
            tokens.find("bob-token").unwrap().groups,
            ["system:authenticated"]
        );
        let third = tokens.find("c").unwrap();
        assert_eq!(third.username, "d\"e");
        assert_eq!(third.groups, ["g", "h", "system:authenticated"]);
        assert_eq!(tokens.find(""), None);
        assert_eq!(
            StaticTokens::parse("a,b").unwrap_err(),
            TokenFileError::Columns { line: 1 }
        );
    }
}
