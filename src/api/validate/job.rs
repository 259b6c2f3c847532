//! Jobs and cron jobs.

use serde_json::{Value, json};

use super::schedule;
use super::workload::{NO_MATCH, chooses};
use super::{
    immutable, label_name, label_selector, non_negative_member, one_of, pod, required_one_of,
};
use crate::field::{ErrorList, Path};
use crate::meta::{self, at, boolean, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";

pub(crate) fn job(job: &Value, errors: &mut ErrorList) {
    generated_selector(job, errors);
    job_spec(get(job, "spec"), errors);
    let spec = get(job, "spec");
    let completions = integer(spec, &["completions"]).unwrap_or(0);
    if is_indexed(spec) && completions > 0 {
        let name = text(job, &["metadata", "name"]);
        let longest = format!("{name}-{}", completions - 1);
        if !names::dns1123_label(&longest).is_empty() {
            let why = format!("will not able to create pod with invalid DNS label: {longest}");
            errors.invalid(&Path::new("metadata.name"), name, why);
        }
    }
}

fn is_indexed(spec: &Value) -> bool {
    text(spec, &["completionMode"]) == "Indexed"
}

fn generated_selector(job: &Value, errors: &mut ErrorList) {
    let spec = get(job, "spec");
    let selector = get(spec, "selector");
    if boolean(spec, &["manualSelector"]) || selector.is_null() {
        return;
    }
    let uid = text(job, &["metadata", "uid"]);
    let name = text(job, &["metadata", "name"]);
    let labels = at(spec, &["template", "metadata", "labels"]);
    let path = Path::new("spec.template.metadata");
    for (key, expected) in [
        ("controller-uid", uid),
        ("job-name", name),
        (UID_LABEL, uid),
        (NAME_LABEL, name),
    ] {
        let label = path.child("labels");
        let actual = get(labels, key);
        if actual.is_null() {
            errors.required(&label.key(key), format!("must be '{expected}'"));
        } else if actual != expected {
            errors.invalid(
                &label.key(key),
                labels.clone(),
                format!("must be '{expected}'"),
            );
        }
    }
    let expected = json!({
        "controller-uid": uid, "job-name": name, (UID_LABEL): uid, (NAME_LABEL): name,
    });
    if chooses(selector, &expected) == Ok(false) {
        let why = "`selector` not auto-generated";
        errors.invalid(&SPEC.child("selector"), selector.clone(), why);
    }
}

fn job_spec(spec: &Value, errors: &mut ErrorList) {
    common(spec, &SPEC, errors);
    let selector = get(spec, "selector");
    let path = SPEC.child("selector");
    if selector.is_null() {
        errors.required(&path, "");
    } else {
        label_selector(selector, &path, errors);
    }
    let labels = at(spec, &["template", "metadata", "labels"]);
    if chooses(selector, labels) == Ok(false) {
        errors.invalid(
            &SPEC.child("template.metadata.labels"),
            labels.clone(),
            NO_MATCH,
        );
    }
}

/// What holds for a job as for a template of one.
fn common(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        non_negative_member(spec, key, path, errors);
    }
    let per_index = get(spec, "backoffLimitPerIndex");
    let max_failed = get(spec, "maxFailedIndexes");
    if !max_failed.is_null() && per_index.is_null() {
        let why = "when maxFailedIndexes is specified";
        errors.required(&path.child("backoffLimitPerIndex"), why);
    }
    managed_by(spec, &path.child("managedBy"), errors);
    if let Some(mode) = get(spec, "completionMode").as_str() {
        one_of(
            mode,
            &["NonIndexed", "Indexed"],
            &path.child("completionMode"),
            errors,
        );
    }
    if is_indexed(spec) {
        indexed(spec, path, errors);
    } else if matches!(text(spec, &["completionMode"]), "" | "NonIndexed") {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            let value = get(spec, key);
            if !value.is_null() {
                let why = "requires indexed completion mode";
                errors.invalid(&path.child(key), value.clone(), why);
            }
        }
    }
    policies(spec, path, errors);
    pod::template(get(spec, "template"), &path.child("template"), errors);
    restart_policy(spec, path, errors);
}

fn managed_by(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(manager) = get(spec, "managedBy").as_str() else {
        return;
    };
    domain_prefixed(manager, path, errors);
    if manager.len() > 63 {
        errors.too_long(path, 63);
    }
}

/// `domain/path`.
pub(crate) fn domain_prefixed(value: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.required(path, "");
        return;
    }
    let Some((host, rest)) = value
        .split_once('/')
        .filter(|(host, rest)| !host.is_empty() && !rest.is_empty())
    else {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.invalid(path, value, why);
        return;
    };
    errors.invalid_each(path, host, names::dns1123_subdomain(host));
    let good = rest
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._~!$&'()*+,;=:%@-".contains(&byte));
    if !good {
        let why = names::pattern_error("Invalid path", r"^[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$", &[]);
        errors.invalid(path, rest, why);
    }
}

fn indexed(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let number = |key: &str| integer(spec, &[key]);
    let completions = number("completions");
    let parallelism = number("parallelism");
    let failed = number("maxFailedIndexes");
    let (parallel_path, failed_path) = (path.child("parallelism"), path.child("maxFailedIndexes"));
    if completions.is_none() {
        errors.required(
            &path.child("completions"),
            "when completion mode is Indexed",
        );
    }
    if let Some(parallelism) = parallelism.filter(|number| *number > 100_000) {
        let why = "must be less than or equal to 100000 when completion mode is Indexed";
        errors.invalid(&parallel_path, parallelism, why);
    }
    if let (Some(completions), Some(failed)) = (completions, failed)
        && failed > completions
    {
        errors.invalid(
            &failed_path,
            failed,
            "must be less than or equal to completions",
        );
    }
    if let Some(failed) = failed.filter(|number| *number > 100_000) {
        errors.invalid(&failed_path, failed, "must be less than or equal to 100000");
    }
    let many = completions.is_some_and(|number| number > 100_000);
    if many && number("backoffLimitPerIndex").is_some() {
        let why = "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index";
        if failed.is_none() {
            errors.required(
                &failed_path,
                "must be specified when completions is above 100000",
            );
        }
        if let Some(parallelism) = parallelism.filter(|number| *number > 10_000) {
            errors.invalid(&parallel_path, parallelism, why);
        }
        if let Some(failed) = failed.filter(|number| *number > 10_000) {
            errors.invalid(&failed_path, failed, why);
        }
    }
}

fn policies(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let failure = get(spec, "podFailurePolicy");
    if !failure.is_null() {
        failure_policy(spec, failure, &path.child("podFailurePolicy.rules"), errors);
    }
    let success = get(spec, "successPolicy");
    if !success.is_null() {
        let at = path.child("successPolicy");
        if is_indexed(spec) {
            success_policy(spec, success, &at.child("rules"), errors);
        } else {
            errors.invalid(&at, success.clone(), "requires indexed completion mode");
        }
    }
    if let Some(policy) = get(spec, "podReplacementPolicy").as_str() {
        let valid: &[&str] = if failure.is_null() {
            &["Failed", "TerminatingOrFailed"]
        } else {
            &["Failed"]
        };
        one_of(policy, valid, &path.child("podReplacementPolicy"), errors);
    }
}

fn failure_policy(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = items(policy, &["rules"]);
    if rules.len() > 20 {
        errors.too_many(path, rules.len(), 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        failure_rule(spec, rule, &path.index(index), errors);
    }
}

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];

fn failure_rule(spec: &Value, rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let action = text(rule, &["action"]);
    let action_path = path.child("action");
    match action {
        "" => {
            let why = format!("valid values: {}", quoted(ACTIONS));
            errors.required(&action_path, why);
        }
        "FailIndex" => {
            if get(spec, "backoffLimitPerIndex").is_null() {
                let why = "requires the backoffLimitPerIndex to be set";
                errors.invalid(&action_path, action, why);
            }
        }
        other => one_of(other, ACTIONS, &action_path, errors),
    }
    let codes = get(rule, "onExitCodes");
    let conditions = items(rule, &["onPodConditions"]);
    if !codes.is_null() {
        exit_codes(spec, codes, &path.child("onExitCodes"), errors);
    }
    let list = path.child("onPodConditions");
    if conditions.len() > 20 {
        errors.too_many(&list, conditions.len(), 20);
    }
    for (index, pattern) in conditions.iter().enumerate() {
        let at = list.index(index);
        label_name(text(pattern, &["type"]), &at.child("type"), errors);
        const STATUSES: &[&str] = &["False", "True", "Unknown"];
        match text(pattern, &["status"]) {
            "" => {
                let why = format!("valid values: {}", quoted(STATUSES));
                errors.required(&at.child("status"), why);
            }
            status => one_of(status, STATUSES, &at.child("status"), errors),
        }
    }
    let why = match (codes.is_null(), conditions.is_empty()) {
        (false, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (true, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    errors.add(crate::field::ErrorKind::Invalid, path, None, why);
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

fn exit_codes(spec: &Value, codes: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let operator = text(codes, &["operator"]);
    match operator {
        "" => {
            let why = format!("valid values: {}", quoted(&["In", "NotIn"]));
            errors.required(&path.child("operator"), why);
        }
        other => one_of(other, &["In", "NotIn"], &path.child("operator"), errors),
    }
    if let Some(name) = get(codes, "containerName").as_str() {
        let known = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| items(spec, &["template", "spec", list]))
            .any(|container| text(container, &["name"]) == name);
        if !known {
            let why = "must be one of the container or initContainer names in the pod template";
            errors.invalid(&path.child("containerName"), name, why);
        }
    }
    let list = path.child("values");
    let values: Vec<i64> = items(codes, &["values"])
        .iter()
        .map(|value| value.as_i64().unwrap_or(0))
        .collect();
    if values.is_empty() {
        errors.invalid(
            &list,
            get(codes, "values").clone(),
            "at least one value is required",
        );
    } else if values.len() > 255 {
        errors.too_many(&list, values.len(), 255);
    }
    for (index, value) in values.iter().enumerate() {
        if operator == "In" && *value == 0 {
            errors.invalid(&list.index(index), 0, "must not be 0 for the In operator");
        }
        if values[..index].contains(value) {
            errors.duplicate(&list.index(index), *value);
        }
    }
    if !values.is_sorted() {
        errors.invalid(&list, values, "must be ordered");
    }
}

fn success_policy(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = items(policy, &["rules"]);
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.required(path, why);
    }
    if rules.len() > 20 {
        errors.too_many(path, rules.len(), 20);
    }
    let completions = integer(spec, &["completions"]).unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        success_rule(rule, completions, &path.index(index), errors);
    }
}

fn success_rule(rule: &Value, completions: i64, path: &Path<'_>, errors: &mut ErrorList) {
    let count = integer(rule, &["succeededCount"]);
    let indexes = get(rule, "succeededIndexes").as_str();
    if count.is_none() && indexes.is_none() {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        errors.required(path, why);
    }
    let mut total = 0;
    if let Some(indexes) = indexes {
        let at = path.child("succeededIndexes");
        if indexes.len() > 65_536 {
            errors.too_long(&at, 65_536);
        }
        match count_indexes(indexes, completions) {
            Ok(count) => total = count,
            Err(why) => {
                errors.invalid(
                    &at,
                    indexes,
                    format!("error parsing succeededIndexes: {why}"),
                );
            }
        }
    }
    let Some(count) = count else { return };
    let at = path.child("succeededCount");
    super::non_negative(count, &at, errors);
    if count > completions {
        let why = format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        );
        errors.invalid(&at, count, why);
    }
    if indexes.is_some() && count > total {
        let why = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.invalid(&at, count, why);
    }
}

/// How many indexes a list like `1,3-5` names.
fn count_indexes(list: &str, completions: i64) -> Result<i64, String> {
    if list.is_empty() {
        return Ok(0);
    }
    let mut last = None;
    let mut total = 0;
    for interval in list.split(',') {
        let (low, high) = index_interval(interval, completions)?;
        if let Some(last) = last
            && last >= low
        {
            return Err(format!(
                "non-increasing order, previous: {last}, current: {low}"
            ));
        }
        total += high - low + 1;
        last = Some(high);
    }
    Ok(total)
}

fn index_interval(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = interval.split('-').collect();
    if parts.len() > 2 {
        return Err(format!(
            "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(format!(
            "cannot convert string to integer for index: {text:?}"
        )),
        Ok(number) if number >= completions => Err(format!("too large index: {text:?}")),
        Ok(number) => Ok(number),
    };
    let low = index(parts[0])?;
    let Some(high) = parts.get(1) else {
        return Ok((low, low));
    };
    let high = index(high)?;
    if low >= high {
        return Err(format!(
            "non-increasing order, previous: {low}, current: {high}"
        ));
    }
    Ok((low, high))
}

fn restart_policy(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let policy = text(spec, &["template", "spec", "restartPolicy"]);
    let at = path.child("template.spec.restartPolicy");
    match policy {
        "Always" | "" => errors.required(&at, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" | "Never" => {
            if policy != "Never" && !get(spec, "podFailurePolicy").is_null() {
                let why = "only \"Never\" is supported when podFailurePolicy is specified";
                errors.invalid(&at, policy, why);
            }
        }
        other => errors.not_supported(&at, other, &["OnFailure", "Never"]),
    }
}

pub(crate) fn job_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    job_spec(spec, errors);
    completions(spec, before, errors);
    let same = |key: &str, errors: &mut ErrorList| {
        immutable(get(spec, key), get(before, key), &SPEC.child(key), errors);
    };
    same("selector", errors);
    template_update(new, old, errors);
    for key in [
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        same(key, errors);
    }
}

fn completions(spec: &Value, before: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("completions");
    let (now, old) = (get(spec, "completions"), get(before, "completions"));
    if !is_indexed(spec) {
        immutable(now, old, &path, errors);
    } else if now != old && !now.is_null() && now != get(spec, "parallelism") {
        errors.invalid(
            &path,
            now.clone(),
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// While a job is suspended and no pod of it has run, where its pods go may change.
fn template_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let template = at(new, &["spec", "template"]);
    let mut before = at(old, &["spec", "template"]).clone();
    let suspended = boolean(old, &["spec", "suspend"]);
    let waiting = suspended && at(old, &["status", "startTime"]).is_null();
    if waiting {
        for path in [
            &["spec", "nodeSelector"][..],
            &["spec", "tolerations"],
            &["spec", "schedulingGates"],
            &["spec", "affinity", "nodeAffinity"],
            &["metadata", "annotations"],
            &["metadata", "labels"],
        ] {
            match at(template, path) {
                Value::Null => {
                    meta::remove(&mut before, path);
                }
                value => meta::set(&mut before, path, value.clone()),
            }
        }
        let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        if empty(at(&before, &["spec", "affinity"]))
            && at(template, &["spec", "affinity"]).is_null()
        {
            meta::remove(&mut before, &["spec", "affinity"]);
        }
    }
    if suspended {
        for list in ["containers", "initContainers"] {
            let wanted = items(template, &["spec", list]);
            let slots = meta::items_mut(&mut before, &["spec", list]);
            for (slot, wanted) in slots.iter_mut().zip(wanted) {
                crate::strategy::copy_member(slot, wanted, "resources");
            }
        }
    }
    immutable(template, &before, &SPEC.child("template"), errors);
}

pub(crate) fn job_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let (status, before) = (get(new, "status"), get(old, "status"));
    for key in ["active", "succeeded", "failed", "ready", "terminating"] {
        non_negative_member(status, key, &path, errors);
    }
    let holds = |status: &Value, kind: &str| {
        items(status, &["conditions"])
            .iter()
            .any(|one| text(one, &["type"]) == kind && text(one, &["status"]) == "True")
    };
    let conditions = path.child("conditions");
    let mut against = |bad: bool, why: &str| {
        if bad {
            errors.add(crate::field::ErrorKind::Invalid, &conditions, None, why);
        }
    };
    let (complete, failed) = (holds(status, "Complete"), holds(status, "Failed"));
    let (target, criteria) = (
        holds(status, "FailureTarget"),
        holds(status, "SuccessCriteriaMet"),
    );
    against(
        complete && failed,
        "cannot set Complete=True and Failed=true conditions",
    );
    against(
        complete && target,
        "cannot set Complete=True and FailureTarget=true conditions",
    );
    let newly = |kind: &str| holds(status, kind) && !holds(before, kind);
    against(
        newly("Failed") && !target,
        "cannot set Failed=True condition without the FailureTarget=true condition",
    );
    against(
        newly("Complete") && !criteria,
        "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
    );
    against(
        criteria && failed,
        "cannot set SuccessCriteriaMet=True and Failed=true conditions",
    );
    against(
        criteria && target,
        "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
    );
    for kind in ["Failed", "Complete", "FailureTarget"] {
        against(
            holds(before, kind) && !holds(status, kind),
            &format!("cannot disable the terminal {kind}=True condition"),
        );
    }
    against(
        holds(before, "SuccessCriteriaMet") && !criteria,
        "cannot disable the SuccessCriteriaMet=True condition",
    );
    job_times(
        status,
        before,
        boolean(new, &["spec", "suspend"]),
        complete,
        complete || failed,
        errors,
    );
}

fn job_times(
    status: &Value,
    before: &Value,
    suspended: bool,
    complete: bool,
    finished: bool,
    errors: &mut ErrorList,
) {
    let path = Path::new("status");
    let completion = path.child("completionTime");
    let (start, end) = (get(status, "startTime"), get(status, "completionTime"));
    if !end.is_null() && !complete {
        let why = "cannot set completionTime when there is no Complete=True condition";
        errors.invalid(&completion, end.clone(), why);
    }
    if end.is_null() && complete {
        errors.required(&completion, "completionTime is required for Complete jobs");
    }
    if let (Some(start), Some(end)) = (start.as_str(), end.as_str())
        && end < start
    {
        errors.invalid(&completion, end, "must be equal to or after `startTime`");
    }
    let active = integer(status, &["active"]).unwrap_or(0);
    if active > 0 && finished {
        errors.invalid(
            &path.child("active"),
            active,
            "active>0 is invalid for finished job",
        );
    }
    if start.is_null() && finished {
        errors.required(
            &path.child("startTime"),
            "startTime is required for finished job",
        );
    }
    let ready = integer(status, &["ready"]).unwrap_or(0);
    if ready > active {
        let why = "cannot set more ready pods than active";
        errors.invalid(&path.child("ready"), ready, why);
    }
    let started = get(before, "startTime");
    if !started.is_null() && started != start && !suspended {
        let why = "field is immutable for unsuspended job once set";
        errors.invalid(&path.child("startTime"), start.clone(), why);
    }
}

pub(crate) fn cron_job(job: &Value, errors: &mut ErrorList) {
    cron_spec(job, None, errors);
    let name = text(job, &["metadata", "name"]);
    if name.len() > 52 {
        errors.invalid(
            &Path::new("metadata.name"),
            name,
            "must be no more than 52 characters",
        );
    }
}

pub(crate) fn cron_job_update(job: &Value, old: &Value, errors: &mut ErrorList) {
    cron_spec(job, Some(old), errors);
}

fn cron_spec(job: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = get(job, "spec");
    let before = old.map_or(&Value::Null, |old| get(old, "spec"));
    let schedule = text(spec, &["schedule"]);
    if schedule.is_empty() {
        errors.required(&SPEC.child("schedule"), "");
    } else {
        let zone_allowed = text(before, &["schedule"]).contains("TZ");
        schedule_format(spec, schedule, zone_allowed, errors);
    }
    non_negative_member(spec, "startingDeadlineSeconds", &SPEC, errors);
    let zone = get(spec, "timeZone");
    if old.is_none() || get(before, "timeZone") != zone {
        time_zone(zone, errors);
    }
    required_one_of(
        text(spec, &["concurrencyPolicy"]),
        &["Allow", "Forbid", "Replace"],
        &SPEC.child("concurrencyPolicy"),
        errors,
    );
    let template = at(spec, &["jobTemplate", "spec"]);
    let path = SPEC.child("jobTemplate.spec");
    common(template, &path, errors);
    let selector = get(template, "selector");
    if !selector.is_null() {
        let why = "`selector` will be auto-generated";
        errors.invalid(&path.child("selector"), selector.clone(), why);
    }
    if boolean(template, &["manualSelector"]) {
        errors.not_supported(&path.child("manualSelector"), true, &["nil", "false"]);
    }
    non_negative_member(spec, "successfulJobsHistoryLimit", &SPEC, errors);
    non_negative_member(spec, "failedJobsHistoryLimit", &SPEC, errors);
}

fn schedule_format(spec: &Value, schedule: &str, zone_allowed: bool, errors: &mut ErrorList) {
    let path = SPEC.child("schedule");
    if let Err(why) = schedule::check(schedule) {
        errors.invalid(&path, schedule, why);
    }
    if !schedule.contains("TZ") {
        return;
    }
    if !zone_allowed {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.invalid(&path, schedule, why);
    } else if !get(spec, "timeZone").is_null() {
        let why = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.invalid(&path, schedule, why);
    }
}

fn time_zone(zone: &Value, errors: &mut ErrorList) {
    let Some(zone) = zone.as_str() else { return };
    let path = SPEC.child("timeZone");
    if zone.is_empty() {
        errors.invalid(&path, zone, "timeZone must be nil or non-empty string");
        return;
    }
    let good = |part: &str| {
        part != "."
            && part != ".."
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    if !zone.split('/').all(good) {
        errors.invalid(&path, zone, format!("unknown time zone {zone}"));
        return;
    }
    if zone.eq_ignore_ascii_case("local") {
        let why =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(&path, zone, why);
    } else if jiff::tz::TimeZone::get(zone).is_err() {
        errors.invalid(&path, zone, format!("unknown time zone {zone}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes() {
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        assert!(count_indexes("2,1", 5).is_err());
        assert!(count_indexes("5", 5).is_err());
    }
}
