//! What a path means, and the right that it needs.

use super::query::decode_part;
use http::Method;

/// A container, or a pod where the container is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    pub container: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Healthz,
    Pods,
    RunningPods,
    ContainerLogs(Target),
    Exec(Target),
    Attach(Target),
    PortForward(Target),
    Run(Target),
    StatsSummary,
    Metrics,
    MetricsResource,
    MetricsCadvisor,
    MetricsProbes,
    Configz,
    /// Known and switched off.
    Disabled(&'static str),
    Unknown,
}

impl Route {
    pub fn parse(path: &str) -> Self {
        let parts: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(decode_part)
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] => Self::Healthz,
            ["pods"] => Self::Pods,
            ["runningpods"] => Self::RunningPods,
            ["containerLogs", rest @ ..] => {
                container(rest).map_or(Self::Unknown, Self::ContainerLogs)
            }
            ["exec", rest @ ..] => container(rest).map_or(Self::Unknown, Self::Exec),
            ["attach", rest @ ..] => container(rest).map_or(Self::Unknown, Self::Attach),
            ["run", rest @ ..] => container(rest).map_or(Self::Unknown, Self::Run),
            ["portForward", rest @ ..] => pod(rest).map_or(Self::Unknown, Self::PortForward),
            ["stats", "summary"] => Self::StatsSummary,
            ["metrics"] => Self::Metrics,
            ["metrics", "resource"] => Self::MetricsResource,
            ["metrics", "cadvisor"] => Self::MetricsCadvisor,
            ["metrics", "probes"] => Self::MetricsProbes,
            ["configz"] => Self::Configz,
            ["logs", ..] => Self::Disabled("logs"),
            ["debug", ..] => Self::Disabled("debug"),
            ["checkpoint", ..] => Self::Disabled("checkpoint"),
            _ => Self::Unknown,
        }
    }

    pub fn allows(&self, method: &Method) -> bool {
        match self {
            Self::Exec(_) | Self::Attach(_) | Self::PortForward(_) => {
                method == Method::GET || method == Method::POST
            }
            Self::Run(_) => method == Method::POST,
            Self::Unknown | Self::Disabled(_) => true,
            _ => method == Method::GET || method == Method::HEAD,
        }
    }
}

fn container(parts: &[&str]) -> Option<Target> {
    let (namespace, pod, uid, container) = match parts {
        [namespace, pod, container] => (namespace, pod, None, container),
        [namespace, pod, uid, container] => (namespace, pod, Some(uid), container),
        _ => return None,
    };
    Some(Target {
        namespace: (*namespace).to_owned(),
        pod: (*pod).to_owned(),
        uid: uid.map(|uid| (*uid).to_owned()),
        container: (*container).to_owned(),
    })
}

fn pod(parts: &[&str]) -> Option<Target> {
    let (namespace, pod, uid) = match parts {
        [namespace, pod] => (namespace, pod, None),
        [namespace, pod, uid] => (namespace, pod, Some(uid)),
        _ => return None,
    };
    Some(Target {
        namespace: (*namespace).to_owned(),
        pod: (*pod).to_owned(),
        uid: uid.map(|uid| (*uid).to_owned()),
        container: String::new(),
    })
}

/// Subresources of the node of which one must be allowed: the finest first, `proxy` for everything without its own.
const FINE: [(&str, &str); 4] = [
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
];
const COARSE: [(&str, &str); 6] = [
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
];

pub fn subresources(path: &str) -> Vec<&'static str> {
    let under = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let find = |table: &[(&str, &'static str)]| {
        let mut rows = table.iter();
        rows.find(|(root, _)| under(root)).map(|(_, name)| *name)
    };
    let mut names: Vec<&'static str> = find(&FINE).into_iter().collect();
    names.push(find(&COARSE).unwrap_or("proxy"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_their_targets() {
        let target = |uid: Option<&str>, container: &str| Target {
            namespace: "ns".to_owned(),
            pod: "p".to_owned(),
            uid: uid.map(str::to_owned),
            container: container.to_owned(),
        };
        for (path, route) in [
            ("/exec/ns/p/c", Route::Exec(target(None, "c"))),
            ("/exec/ns/p/u/c", Route::Exec(target(Some("u"), "c"))),
            ("/portForward/ns/p", Route::PortForward(target(None, ""))),
            ("/runningpods/", Route::RunningPods),
            ("/metrics/cadvisor", Route::MetricsCadvisor),
            ("/containerLogs/ns", Route::Unknown),
            ("/logs/kern.log", Route::Disabled("logs")),
        ] {
            assert_eq!(Route::parse(path), route);
        }
    }

    #[test]
    fn finest_right_first() {
        assert_eq!(subresources("/pods"), ["pods", "proxy"]);
        assert_eq!(subresources("/podsx"), ["proxy"]);
        assert_eq!(subresources("/metrics/resource"), ["metrics"]);
        assert_eq!(subresources("/exec/a/b/c"), ["proxy"]);
    }
}
