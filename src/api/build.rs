//! Turns the facts in `data/types.txt` into static tables: nothing is parsed at run time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// One type of the file.
struct Type<'a> {
    name: &'a str,
    kind: Option<&'a str>,
    atomic: bool,
    union: Option<&'a str>,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    name: &'a str,
    ty: &'a str,
    flags: Vec<&'a str>,
}

impl<'a> Field<'a> {
    fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.flags.iter().find_map(|flag| flag.strip_prefix(key))
    }
}

fn parse(text: &str) -> Vec<Type<'_>> {
    let mut types: Vec<Type<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        if line.starts_with(' ') {
            let ty = words.next().expect("a field has a type");
            let flags = words.collect();
            let last = types.last_mut().expect("a field follows a type");
            last.fields.push(Field { name, ty, flags });
        } else {
            let rest: Vec<&str> = words.collect();
            let value = |key: &str| rest.iter().find_map(|word| word.strip_prefix(key));
            types.push(Type {
                name,
                kind: value("kind="),
                atomic: rest.contains(&"atomic"),
                union: value("union="),
                fields: Vec::new(),
            });
        }
    }
    types
}

const SCALARS: &[(&str, &str)] = &[
    ("any", "Any"),
    ("string", "String"),
    ("bytes", "Bytes"),
    ("bool", "Boolean"),
    ("int32", "Int32"),
    ("int64", "Int64"),
    ("double", "Double"),
    ("time", "Time"),
    ("microtime", "MicroTime"),
    ("quantity", "Quantity"),
    ("intorstring", "IntOrString"),
    ("raw", "Raw"),
    ("fields", "Fields"),
    ("json", "Json"),
];

/// Emits statics, each distinct list and map once.
struct Emitter {
    out: String,
    anonymous: BTreeMap<String, String>,
}

impl Emitter {
    fn anonymous(&mut self, shape: String) -> String {
        if let Some(name) = self.anonymous.get(&shape) {
            return name.clone();
        }
        let name = format!("A{}", self.anonymous.len());
        writeln!(
            self.out,
            "static {name}: Schema = Schema::builtin(\"\", {shape});"
        )
        .expect("text");
        self.anonymous.insert(shape, name.clone());
        name
    }

    /// The static that holds the schema of a type expression.
    fn schema(&mut self, ty: &str, field: &Field<'_>) -> String {
        if let Some(item) = ty.strip_prefix("[]") {
            let item = self.schema(item, field);
            let kind = if field.has("set") {
                "ListKind::Set"
            } else if field.value("map=").is_some() {
                "ListKind::Map"
            } else {
                "ListKind::Atomic"
            };
            let keys: Vec<String> = field
                .value("map=")
                .map(|keys| {
                    keys.split(',')
                        .map(|key| format!("Name::Borrowed({key:?})"))
                })
                .into_iter()
                .flatten()
                .collect();
            let merge = match field.value("merge=") {
                Some(key) => format!("Some({key:?})"),
                None => "None".to_owned(),
            };
            return self.anonymous(format!(
                "Shape::List(List {{ item: SchemaRef::Static(&{item}), kind: {kind}, keys: Slice::Static(&[{}]), merge: {merge}, wrapped: {} }})",
                keys.join(", "),
                field.has("wrapped"),
            ));
        }
        if let Some(value) = ty.strip_prefix("{}") {
            let value = self.schema(value, field);
            return self.anonymous(format!(
                "Shape::Map(Map {{ value: SchemaRef::Static(&{value}), atomic: {} }})",
                field.has("atomic"),
            ));
        }
        if let Some((_, variant)) = SCALARS.iter().find(|(name, _)| *name == ty) {
            return self.anonymous(format!("Shape::{variant}"));
        }
        let union = match ty {
            "orbool" => Some("Bool"),
            "orarray" => Some("Array"),
            "orstrings" => Some("Strings"),
            _ => None,
        };
        if let Some(or) = union {
            return self.anonymous(format!(
                "Shape::SchemaOr(SchemaRef::Static(&{}), Or::{or})",
                ident("apiextensions.v1.JSONSchemaProps")
            ));
        }
        if field.has("granular") {
            return format!("{}_GRANULAR", ident(ty));
        }
        ident(ty)
    }

    fn field(&mut self, field: &Field<'_>) -> String {
        let schema = self.schema(field.ty, field);
        let structural = !SCALARS.iter().any(|(name, _)| *name == field.ty)
            && !field.ty.starts_with(['[', '{'])
            || matches!(
                field.ty,
                "time" | "microtime" | "quantity" | "intorstring" | "raw" | "json" | "fields"
            );
        let pointer = field.has("ptr");
        let always = field.has("keep") || (structural && !pointer && !field.has("omitzero"));
        let tags: Vec<&str> = field
            .value("#")
            .map(|tags| tags.split('.').collect())
            .unwrap_or_default();
        let tag = tags.last().copied().unwrap_or("0");
        let via = &tags[..tags.len().saturating_sub(1)];
        let default = match field.value("def=") {
            Some(text) => format!("Some({text:?})"),
            None => "None".to_owned(),
        };
        format!(
            "Field {{ name: Name::Borrowed({:?}), schema: SchemaRef::Static(&{schema}), required: {}, pointer: {pointer}, always: {always}, default: FieldDefault::Text({default}), retain_keys: {}, replace: {}, tag: {tag}, via: &[{}] }}",
            field.name,
            field.has("req"),
            field.has("retain"),
            field.has("replace"),
            via.join(", "),
        )
    }

    fn structure(&mut self, ty: &Type<'_>) {
        let fields: Vec<String> = ty.fields.iter().map(|field| self.field(field)).collect();
        let id = ident(ty.name);
        writeln!(
            self.out,
            "static F_{id}: [Field; {}] = [\n    {}\n];",
            fields.len(),
            fields.join(",\n    ")
        )
        .expect("text");
        let union = match ty.union.and_then(|union| union.split_once(':')) {
            Some((discriminator, members)) => {
                let members: Vec<String> = members
                    .split(',')
                    .filter_map(|member| member.split_once('>'))
                    .map(|(field, value)| format!("({field:?}, {value:?})"))
                    .collect();
                format!(
                    "Some(&Union {{ discriminator: {discriminator:?}, members: &[{}] }})",
                    members.join(", ")
                )
            }
            None => "None".to_owned(),
        };
        // An atomic type may be taken apart where a field says so.
        for (suffix, atomic) in [("", ty.atomic), ("_GRANULAR", false)] {
            if !suffix.is_empty() && !ty.atomic {
                continue;
            }
            writeln!(
                self.out,
                "#[allow(dead_code)]\nstatic {id}{suffix}: Schema = Schema::builtin({:?}, Shape::Struct(Struct {{ fields: Slice::Static(&F_{id}), atomic: {atomic}, union: {union}, preserve_unknown: false, additional: None, embedded: false }}));",
                full_name(ty.name),
            )
            .expect("text");
        }
    }
}

fn ident(name: &str) -> String {
    format!("T_{}", name.replace(['.', '-'], "_"))
}

/// The name under which OpenAPI knows the type.
fn full_name(short: &str) -> String {
    let prefix = match short.split('.').next() {
        Some("meta") => "io.k8s.apimachinery.pkg.apis.",
        Some("apiextensions") => "io.k8s.apiextensions-apiserver.pkg.apis.",
        Some("apiregistration") => "io.k8s.kube-aggregator.pkg.apis.",
        Some("version") => "io.k8s.apimachinery.pkg.",
        _ => "io.k8s.api.",
    };
    format!("{prefix}{short}")
}

fn kind_table(types: &[Type<'_>]) -> String {
    let mut rows: Vec<String> = Vec::new();
    for ty in types {
        let Some(kind) = ty.kind.filter(|kind| !kind.starts_with('*')) else {
            continue;
        };
        let parts: Vec<&str> = kind.split('/').collect();
        if let [group, version, kind] = parts[..] {
            rows.push(format!(
                "    (({group:?}, {version:?}, {kind:?}), &{}),",
                ident(ty.name)
            ));
        }
    }
    rows.sort();
    format!(
        "pub(super) static KINDS: &[((&str, &str, &str), &Schema)] = &[\n{}\n];\n",
        rows.join("\n")
    )
}

fn name_table(types: &[Type<'_>]) -> String {
    let mut rows: Vec<String> = types
        .iter()
        .map(|ty| format!("    ({:?}, &{}),", full_name(ty.name), ident(ty.name)))
        .collect();
    rows.sort();
    format!(
        "pub(super) static NAMES: &[(&str, &Schema)] = &[\n{}\n];\n",
        rows.join("\n")
    )
}

fn main() {
    println!("cargo::rerun-if-changed=data/types.txt");
    println!("cargo::rerun-if-changed=build.rs");
    let text = std::fs::read_to_string("data/types.txt").expect("data/types.txt");
    let types = parse(&text);
    let mut emitter = Emitter {
        out: String::new(),
        anonymous: BTreeMap::new(),
    };
    for ty in &types {
        emitter.structure(ty);
    }
    emitter.out.push_str(&kind_table(&types));
    emitter.out.push_str(&name_table(&types));
    let directory = std::env::var_os("OUT_DIR").expect("OUT_DIR");
    std::fs::write(Path::new(&directory).join("types.rs"), emitter.out).expect("types.rs");
}
