//! The functions that expressions may call: their signatures in a table, their work in one file for each library.

use super::eval::{Outcome, no_overload};
use super::types::Type;
use super::value::Value;

mod basic;
mod lists;
mod net;
mod resources;
mod text;

pub(crate) use basic::duration;
pub use resources::Version;

/// Name, parameters, what it returns. The letters are those of [`kind`]; a receiver stands before a dot, parameters
/// that may be missing behind a question mark.
const SIGNATURES: &[(&str, &str, char)] = &[
    ("size", "*", 'i'),
    ("size", "*.", 'i'),
    ("type", "*", 't'),
    ("dyn", "*", '*'),
    ("int", "*", 'i'),
    ("uint", "*", 'u'),
    ("double", "*", 'd'),
    ("string", "*", 's'),
    ("bytes", "*", 'y'),
    ("bool", "*", 'b'),
    ("duration", "*", 'D'),
    ("timestamp", "*", 'T'),
    ("getFullYear", "T.?s", 'i'),
    ("getMonth", "T.?s", 'i'),
    ("getDate", "T.?s", 'i'),
    ("getDayOfMonth", "T.?s", 'i'),
    ("getDayOfWeek", "T.?s", 'i'),
    ("getDayOfYear", "T.?s", 'i'),
    ("getHours", "*.?s", 'i'),
    ("getMinutes", "*.?s", 'i'),
    ("getSeconds", "*.?s", 'i'),
    ("getMilliseconds", "*.?s", 'i'),
    ("optional.of", "*", 'o'),
    ("optional.ofNonZeroValue", "*", 'o'),
    ("optional.none", "", 'o'),
    ("hasValue", "o.", 'b'),
    ("value", "o.", 'v'),
    ("or", "o.o", 'L'),
    ("orValue", "o.*", 'v'),
    ("startsWith", "s.s", 'b'),
    ("endsWith", "s.s", 'b'),
    ("contains", "s.s", 'b'),
    ("matches", "s.s", 'b'),
    ("matches", "ss", 'b'),
    ("find", "s.s", 's'),
    ("findAll", "s.s?i", 'S'),
    ("charAt", "s.i", 's'),
    ("indexOf", "s.s?i", 'i'),
    ("lastIndexOf", "s.s?i", 'i'),
    ("lowerAscii", "s.", 's'),
    ("upperAscii", "s.", 's'),
    ("replace", "s.ss?i", 's'),
    ("split", "s.s?i", 'S'),
    ("substring", "s.i?i", 's'),
    ("trim", "s.", 's'),
    ("reverse", "s.", 's'),
    ("format", "s.l", 's'),
    ("strings.quote", "s", 's'),
    ("join", "l.?s", 's'),
    ("base64.encode", "y", 's'),
    ("base64.decode", "s", 'y'),
    ("isSorted", "l.", 'b'),
    ("sum", "l.", 'e'),
    ("min", "l.", 'e'),
    ("max", "l.", 'e'),
    ("indexOf", "l.*", 'i'),
    ("lastIndexOf", "l.*", 'i'),
    ("slice", "l.ii", 'L'),
    ("flatten", "l.?i", 'l'),
    ("distinct", "l.", 'L'),
    ("reverse", "l.", 'L'),
    ("sort", "l.", 'L'),
    ("first", "l.", 'o'),
    ("last", "l.", 'o'),
    ("lists.range", "i", 'l'),
    ("sets.contains", "ll", 'b'),
    ("sets.equivalent", "ll", 'b'),
    ("sets.intersects", "ll", 'b'),
    ("isQuantity", "s", 'b'),
    ("quantity", "s", 'q'),
    ("isInteger", "q.", 'b'),
    ("asInteger", "q.", 'i'),
    ("asApproximateFloat", "q.", 'd'),
    ("sign", "q.", 'i'),
    ("add", "q.*", 'q'),
    ("sub", "q.*", 'q'),
    ("isGreaterThan", "q.q", 'b'),
    ("isLessThan", "q.q", 'b'),
    ("compareTo", "q.q", 'i'),
    ("isURL", "s", 'b'),
    ("url", "s", 'U'),
    ("getScheme", "U.", 's'),
    ("getHost", "U.", 's'),
    ("getHostname", "U.", 's'),
    ("getPort", "U.", 's'),
    ("getEscapedPath", "U.", 's'),
    ("getQuery", "U.", '*'),
    ("isIP", "s", 'b'),
    ("ip", "s", 'I'),
    ("ip.isCanonical", "s", 'b'),
    ("family", "I.", 'i'),
    ("isUnspecified", "I.", 'b'),
    ("isLoopback", "I.", 'b'),
    ("isLinkLocalMulticast", "I.", 'b'),
    ("isLinkLocalUnicast", "I.", 'b'),
    ("isGlobalUnicast", "I.", 'b'),
    ("ip", "C.", 'I'),
    ("isCIDR", "s", 'b'),
    ("cidr", "s", 'C'),
    ("containsIP", "C.*", 'b'),
    ("containsCIDR", "C.*", 'b'),
    ("masked", "C.", 'C'),
    ("prefixLength", "C.", 'i'),
    ("format.named", "s", 'O'),
    ("validate", "F.s", '*'),
    ("format.dns1123Label", "", 'F'),
    ("format.dns1123Subdomain", "", 'F'),
    ("format.dns1035Label", "", 'F'),
    ("format.qualifiedName", "", 'F'),
    ("format.dns1123LabelPrefix", "", 'F'),
    ("format.dns1123SubdomainPrefix", "", 'F'),
    ("format.dns1035LabelPrefix", "", 'F'),
    ("format.labelValue", "", 'F'),
    ("format.uri", "", 'F'),
    ("format.uuid", "", 'F'),
    ("format.byte", "", 'F'),
    ("format.date", "", 'F'),
    ("format.datetime", "", 'F'),
    ("isSemver", "s?b", 'b'),
    ("semver", "s?b", 'V'),
    ("major", "V.", 'i'),
    ("minor", "V.", 'i'),
    ("patch", "V.", 'i'),
    ("isGreaterThan", "V.V", 'b'),
    ("isLessThan", "V.V", 'b'),
    ("compareTo", "V.V", 'i'),
];

/// Whether a type may stand where a letter stands.
fn fits(letter: char, kind: &Type) -> bool {
    match (letter, kind) {
        ('*', _) | (_, Type::Dyn) => true,
        ('l', Type::List(_)) | ('o', Type::Optional(_)) => true,
        (letter, kind) => opaque(letter).is_some_and(|wanted| wanted == *kind),
    }
}

/// The type that a letter stands for, if it is one type.
fn opaque(letter: char) -> Option<Type> {
    Some(match letter {
        's' => Type::Text,
        'i' => Type::Int,
        'u' => Type::Uint,
        'd' => Type::Double,
        'b' => Type::Bool,
        'y' => Type::Bytes,
        't' => Type::Type,
        'D' => Type::Duration,
        'T' => Type::Time,
        'q' => Type::Opaque("kubernetes.Quantity"),
        'U' => Type::Opaque("kubernetes.URL"),
        'I' => Type::Opaque("net.IP"),
        'C' => Type::Opaque("net.CIDR"),
        'F' => Type::Opaque("kubernetes.NamedFormat"),
        'V' => Type::Opaque("kubernetes.Semver"),
        _ => return None,
    })
}

/// The type of a result.
fn result(letter: char, first: Option<&Type>) -> Type {
    match (letter, first) {
        ('e', Some(Type::List(item))) => (**item).clone(),
        ('L', Some(kind)) => kind.clone(),
        ('v', Some(Type::Optional(inner))) => (**inner).clone(),
        ('S', _) => Type::List(Box::new(Type::Text)),
        ('l', _) => Type::List(Box::new(Type::Dyn)),
        ('o', _) => Type::Optional(Box::new(match first {
            Some(Type::List(item)) => (**item).clone(),
            Some(other) => other.clone(),
            None => Type::Dyn,
        })),
        ('O', _) => Type::Optional(Box::new(Type::Opaque("kubernetes.NamedFormat"))),
        (letter, _) => opaque(letter).unwrap_or(Type::Dyn),
    }
}

fn takes(parameters: &str, receiver: bool, types: &[Type]) -> bool {
    if parameters.contains('.') != receiver {
        return false;
    }
    let (needed, optional) = parameters.split_once('?').unwrap_or((parameters, ""));
    let needed: Vec<char> = needed.chars().filter(|letter| *letter != '.').collect();
    let all = needed.iter().copied().chain(optional.chars());
    types.len() >= needed.len()
        && types.len() <= needed.len() + optional.len()
        && all.zip(types).all(|(letter, kind)| fits(letter, kind))
}

/// What a call returns; `None` if there is no such function for these types.
pub(super) fn signature(name: &str, receiver: bool, types: &[Type]) -> Option<Type> {
    let mut all = SIGNATURES
        .iter()
        .filter(|(one, parameters, _)| *one == name && takes(parameters, receiver, types));
    let (_, _, letter) = all.next()?;
    // Of several that could be meant, which one shows when it runs.
    match all.next() {
        Some((_, _, other)) if other != letter => Some(Type::Dyn),
        _ => Some(result(*letter, types.first())),
    }
}

pub(super) fn is_known(name: &str) -> bool {
    SIGNATURES.iter().any(|(one, _, _)| *one == name)
}

/// Types that can be named in an expression.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    [
        "null_type",
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "type",
        "optional_type",
    ]
    .into_iter()
    .find(|one| *one == name)
}

/// How heavy the result may become at most, of functions that make more than they are given.
pub(super) fn most(name: &str, values: &[Value]) -> usize {
    match (name, values) {
        ("lists.range", [Value::Int(to)]) => usize::try_from(*to).unwrap_or_default(),
        ("getQuery", [Value::Url(text)]) => text.len(),
        _ => text::most(name, values),
    }
}

/// Calls a function; a receiver is the first value.
pub(super) fn call(name: &str, receiver: bool, values: &[Value]) -> Outcome {
    basic::call(name, values)
        .or_else(|| text::call(name, values))
        .or_else(|| lists::call(name, values))
        .or_else(|| resources::call(name, values))
        .or_else(|| net::call(name, receiver, values))
        .unwrap_or_else(no_overload)
}
