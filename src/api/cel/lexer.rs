//! Text to tokens.

use std::sync::Arc;

use super::value::Value;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(String),
    Literal(Value),
    /// Operators and brackets.
    Sign(&'static str),
    End,
}

const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-",
    "*", "/", "%", "!", "<", ">",
];

/// Tokens with where they begin.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        if character.is_whitespace() {
            at += character.len_utf8();
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (token, length) = one(rest, character).map_err(|why| fault(at, &why))?;
        all.push((at, token));
        at += length;
    }
    all.push((text.len(), Token::End));
    Ok(all)
}

pub(super) fn fault(at: usize, why: &str) -> String {
    format!("ERROR: <input>:1:{}: {why}", at + 1)
}

fn one(rest: &str, character: char) -> Result<(Token, usize), String> {
    if character.is_ascii_digit() || (character == '.' && digit_at(rest, 1)) {
        return number(rest);
    }
    if let Some(found) = quoted(rest)? {
        return Ok(found);
    }
    if character.is_ascii_alphabetic() || character == '_' {
        let length = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
            .count();
        let token = match &rest[..length] {
            "true" => Token::Literal(Value::Bool(true)),
            "false" => Token::Literal(Value::Bool(false)),
            "null" => Token::Literal(Value::Null),
            name => Token::Name(name.to_owned()),
        };
        return Ok((token, length));
    }
    if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        return Ok((Token::Sign(sign), sign.len()));
    }
    Err(format!(
        "Syntax error: token recognition error at: '{character}'"
    ))
}

fn digit_at(text: &str, at: usize) -> bool {
    text.as_bytes().get(at).is_some_and(u8::is_ascii_digit)
}

fn number(rest: &str) -> Result<(Token, usize), String> {
    let wrong = || "Syntax error: invalid number literal".to_owned();
    let bytes = rest.as_bytes();
    if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
        let digits = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
        let value = u64::from_str_radix(&hex[..digits], 16).map_err(|_| wrong())?;
        return whole(value, rest, digits + 2).ok_or_else(wrong);
    }
    let mut length = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let mut real = false;
    if bytes.get(length) == Some(&b'.') && digit_at(rest, length + 1) {
        real = true;
        length += 1;
        length += rest[length..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let digits = rest[length + 1 + sign..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        if digits > 0 {
            real = true;
            length += 1 + sign + digits;
        }
    }
    if real {
        let value = rest[..length].parse().map_err(|_| wrong())?;
        return Ok((Token::Literal(Value::Double(value)), length));
    }
    let value = rest[..length].parse().map_err(|_| wrong())?;
    whole(value, rest, length).ok_or_else(wrong)
}

/// An integer; with a `u` behind it, one without a sign. The smallest one stands without its minus, which the parser
/// wants before it.
fn whole(value: u64, rest: &str, length: usize) -> Option<(Token, usize)> {
    if matches!(rest.as_bytes().get(length), Some(b'u' | b'U')) {
        return Some((Token::Literal(Value::Uint(value)), length + 1));
    }
    let value = match i64::try_from(value) {
        Ok(value) => value,
        Err(_) if value == 1 << 63 => i64::MIN,
        Err(_) => return None,
    };
    Some((Token::Literal(Value::Int(value)), length))
}

/// A string or bytes, raw or not, in one or three quotes.
fn quoted(rest: &str) -> Result<Option<(Token, usize)>, String> {
    let letters = rest
        .bytes()
        .take(2)
        .take_while(|byte| matches!(byte, b'r' | b'R' | b'b' | b'B'))
        .count();
    let prefix = rest[..letters].to_ascii_lowercase();
    let body = &rest[letters..];
    let Some(quote) = ["\"\"\"", "'''", "\"", "'"]
        .into_iter()
        .find(|quote| body.starts_with(quote))
    else {
        return Ok(None);
    };
    let (raw, bytes) = (prefix.contains('r'), prefix.contains('b'));
    let inner = &body[quote.len()..];
    let end = closing(inner, quote, raw).ok_or("Syntax error: a string does not end")?;
    let length = letters + quote.len() + end + quote.len();
    let value = if raw {
        inner.as_bytes()[..end].to_vec()
    } else {
        unescape(&inner[..end], bytes)?
    };
    let token = if bytes {
        Value::Bytes(value.into())
    } else {
        let text = String::from_utf8(value).map_err(|_| "Syntax error: invalid string")?;
        Value::Text(Arc::from(text))
    };
    Ok(Some((Token::Literal(token), length)))
}

fn closing(inner: &str, quote: &str, raw: bool) -> Option<usize> {
    let mut at = 0;
    while let Some(character) = inner.get(at..)?.chars().next() {
        if inner[at..].starts_with(quote) {
            return Some(at);
        }
        if character == '\n' && quote.len() == 1 {
            return None;
        }
        at += character.len_utf8();
        if character == '\\' && !raw {
            at += inner.get(at..)?.chars().next()?.len_utf8();
        }
    }
    None
}

fn unescape(text: &str, bytes: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = rest[at + 1..].chars().next().unwrap_or('\\');
        rest = &rest[at + 1 + escape.len_utf8()..];
        let simple = match escape {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' | '\'' | '"' | '`' | '?' => escape as u8,
            _ => {
                let (code, used) = coded(escape, rest)?;
                rest = &rest[used..];
                if bytes && matches!(escape, 'x' | 'X' | '0'..='3') {
                    out.push(code as u8);
                } else {
                    let character = char::from_u32(code)
                        .ok_or("Syntax error: a string has an invalid escape")?;
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                continue;
            }
        };
        out.push(simple);
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// `\x41`, `\u0041`, `\U00000041`, `\101`
fn coded(escape: char, rest: &str) -> Result<(u32, usize), String> {
    let (text, radix, used) = match escape {
        'x' | 'X' => (rest.get(..2).map(str::to_owned), 16, 2),
        'u' => (rest.get(..4).map(str::to_owned), 16, 4),
        'U' => (rest.get(..8).map(str::to_owned), 16, 8),
        '0'..='3' => (rest.get(..2).map(|rest| format!("{escape}{rest}")), 8, 2),
        _ => (None, 10, 0),
    };
    text.and_then(|text| u32::from_str_radix(&text, radix).ok())
        .map(|code| (code, used))
        .ok_or_else(|| "Syntax error: a string has an invalid escape".to_owned())
}
