#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;

fn object() -> Value {
    let map = [
        ("min", Value::Int(5)),
        ("name", Value::from("boat")),
        (
            "names",
            Value::list(vec![Value::from("x-a"), Value::from("b")]),
        ),
    ];
    let map: BTreeMap<Key, Value> = map
        .into_iter()
        .map(|(key, value)| (Key::text(key), value))
        .collect();
    Value::Map(Arc::new(map))
}

fn eval(text: &str) -> Result<Value, String> {
    let program = Program::compile(text, &[("self", Type::Dyn)])?;
    let mut budget = 10_000;
    program
        .run(&Scope::new("self", object()), &mut budget)
        .map_err(|failure| failure.to_string())
}

#[test]
fn what_is_true() {
    for text in [
        "1 + 2 * 3 == 7 && !(4 < 3)",
        "has(self.min) && !has(self.max) && self.min > 4",
        "!has(self.max) || self.max > self.min",
        "self.names.all(n, n.size() > 0) && self.names.exists(n, n.startsWith('x-'))",
        "self.names.exists_one(n, n == 'b') && self.names.map(n, n + '!') == ['x-a!', 'b!']",
        "self.names.filter(n, n.matches('^[a-z]$')) == ['b']",
        "self.names.all(i, n, i < 2 && n != '') && {'a': 1}.all(k, k == 'a')",
        "self.min / 2 == 2 && self.min % 2 == 1 && -self.min == -5 && 2.5 * 2.0 == 5.0",
        "dyn(1) == 1.0 && 1u < 2 && 'a' < 'b' && b'a' == bytes('a') && 0x10 == 16",
        "duration('1h') > duration('59m') && timestamp('2024-02-29T01:02:03Z').getMonth() == 1",
        "quantity('1.5Gi').isGreaterThan(quantity('1Gi')) && isQuantity('2m') && !isQuantity('x')",
        "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0",
        "isURL('https://a.example:80/p?q=1') && url('https://a.example:80/p').getHostname() == 'a.example'",
        "url('https://a:80/p').getPort() == '80' && !isURL('a b') && url('https://a/b').getEscapedPath() == '/b'",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && ip('::1').isLoopback() && !isIP('1.2.3')",
        "cidr('10.1.0.0/16').masked().prefixLength() == 16 && ip.isCanonical('::1')",
        "'%s has %d'.format([self.name, self.min]) == 'boat has 5' && 'a,b'.split(',') == ['a', 'b']",
        "'hello'.substring(1, 3) == 'el' && 'hello'.indexOf('l') == 2 && 'Hi'.lowerAscii() == 'hi'",
        "[3, 1, 2].max() == 3 && [1, 2].sum() == 3 && [1, 2].isSorted() && sets.contains([1, 2], [1])",
        "self.?max.hasValue() == false && self.?min.orValue(0) == 5 && self.?min.optMap(x, x + 1).value() == 6",
        "type(self.min) == int && type('') == string && string(5) == '5' && int('7') == 7",
        "self.names.sortBy(n, n.size()) == ['b', 'x-a'] && [1, 2].transformList(i, v, i + v) == [1, 3]",
        "cel.bind(x, self.min * 2, x == 10) && 'self' in {'self': 1} && 2 in [1, 2]",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && !isSemver('1.2') && isSemver('v1.2', true)",
        "!format.dns1123Label().validate('ok').hasValue() && format.named('uuid').value().validate('x').hasValue()",
        "r'\\d' == '\\\\d' && \"\"\"a\nb\"\"\".size() == 3 && '\\u0041' == 'A' // the end",
        "self.nothing == 1 || true",
        "[1, 2, 3].exists(x, x / 0 == 1 || x == 2)",
        "self.min > 1 ? 'y' == 'y' : false",
    ] {
        assert_eq!(eval(text), Ok(Value::Bool(true)), "{text}");
    }
}

#[test]
fn what_goes_wrong() {
    for (text, words) in [
        ("1 / 0 == 1", "division by zero"),
        ("self.nothing == 1", "no such key: nothing"),
        ("self.names[7] == ''", "index out of bounds: 7"),
        ("9223372036854775807 + 1 == 0", "integer overflow"),
        ("self.min + self.name == ''", "no such overload"),
        ("self >", "Syntax error"),
        ("other == 1", "undeclared reference to 'other'"),
        (
            "1 + 'a' == 2",
            "found no matching overload for '_+_' applied to '(int, string)'",
        ),
        ("nope(1)", "undeclared reference to 'nope'"),
        (
            "'a'.startsWith(1)",
            "found no matching overload for 'startsWith'",
        ),
        ("has(1)", "invalid argument to has() macro"),
    ] {
        let why = eval(text).unwrap_err();
        assert!(why.contains(words), "{text}: {why}");
    }
    assert!(eval(&"(".repeat(10_000)).is_err());
    assert!(eval(&format!("{}true", "!".repeat(99_000))).is_ok());
    assert!(eval(&format!("self{}", ".a".repeat(9_000))).is_err());
    assert!(eval(&format!("1{} > 0", " + 1".repeat(9_000))).is_err());
    assert!(eval(&format!("{}1{}", "(".repeat(60), " + 1) * 1".repeat(60))).is_ok());
    let many = vec!["self.min > 1"; 5_000].join(" && ");
    assert_eq!(eval(&many), Err(Failure::Cost.to_string()));
    let many = vec!["self.min > 1"; 500].join(" && ");
    assert_eq!(eval(&many), Ok(Value::Bool(true)));
}

#[test]
fn types_of_fields() {
    let fields = vec![
        ("a".to_owned(), Type::Text),
        ("n".to_owned(), Type::Int),
        ("list".to_owned(), Type::List(Box::new(Type::Int))),
    ];
    let kind = Type::Object(Arc::new(fields));
    let check = |text: &str| Program::compile(text, &[("self", kind.clone())]);
    assert_eq!(*check("self.a == 'x'").unwrap().result(), Type::Bool);
    assert_eq!(
        *check("self.list.map(x, string(x))").unwrap().result(),
        Type::List(Box::new(Type::Text))
    );
    assert!(
        check("self.b == 'x'")
            .unwrap_err()
            .contains("undefined field 'b'")
    );
    assert!(check("self.a > self.n").is_err());
    assert!(check("self.list.all(x, x)").is_err());
    assert!(check("self.all(k, true)").is_err());
    assert!(
        check("self.n.size() > 1").is_ok(),
        "sizes are found out when it runs"
    );
    assert!(check("oldSelf == self").is_err());
}

#[test]
fn nothing_runs_for_ever() {
    let list = "[1,2,3,4,5,6,7,8,9,10]";
    let text =
        format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))");
    assert_eq!(eval(&text), Err(Failure::Cost.to_string()));
}

#[test]
fn results_are_paid_for() {
    for text in [
        "lists.range(100).map(i, lists.range(1000)).size() > 0",
        "lists.range(10000).size() > 0",
        "lists.range(1000).map(i, 'a').join('0123456789'.replace('', '0123456789').replace('', '0123456789')) != ''",
        "lists.range(40).all(i, '0123456789'.replace('', '0123456789').replace('', '0123456789').split('').size() > 0)",
        "lists.range(100).all(i, '0123456789'.replace('', '0123456789').findAll('').size() > 0)",
        "lists.range(100).exists(i, 'a'.matches('a' + self.name))",
    ] {
        assert_eq!(eval(text), Err(Failure::Cost.to_string()), "{text}");
    }
}

#[test]
fn positions_count_characters() {
    for text in [
        "'aéaéb'.indexOf('é', 2) == 3 && 'aéaé'.lastIndexOf('é') == 3 && 'aéaé'.lastIndexOf('é', 2) == 1",
        "'aé'.lastIndexOf('') == 2 && 'aé'.indexOf('') == 0 && 'aé'.indexOf('', 2) == 2 && 'é'.indexOf('x') == -1",
        "'aéb'.charAt(1) == 'é' && 'aéb'.charAt(3) == '' && 'aéb'.substring(1) == 'éb'",
        "-9223372036854775808 < 0",
    ] {
        assert_eq!(eval(text), Ok(Value::Bool(true)), "{text}");
    }
    for text in ["9223372036854775808 < 0", "--9223372036854775808 < 0"] {
        assert!(eval(text).is_err(), "{text}");
    }
}
