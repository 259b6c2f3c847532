//! Our executable in the role of a CNI plugin: reads the call, asks the agent, prints the answer.
//!
//! It runs once per pod and must cost next to nothing: no runtime, no threads, no configuration
//! beyond what the runtime passes. The one thing it does itself is `loopback`, a plugin that
//! containerd 1.6 runs beside ours.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cni::protocol::{Failure, Reply, Request, code, versions};
use crate::cni::socket;

pub const PLUGIN: &str = "sampan-cni";
pub const LOOPBACK: &str = "loopback";
const TIMEOUT: Duration = Duration::from_secs(120);
const LONGEST_CONFIG: u64 = 4 << 20;

/// Whether the executable was called as one of our plugins.
pub fn is_plugin_name(name: &str) -> bool {
    name == PLUGIN || name == LOOPBACK
}

/// Answers one call; standard output and the exit code are the answer.
pub fn main(name: &str) -> ExitCode {
    let (request, outcome) = match read_request() {
        Ok(request) => {
            let outcome = answer(name, &request);
            (request, outcome)
        }
        Err(failure) => (Request::default(), Err(failure)),
    };
    let (text, exit) = match outcome {
        Ok(Value::Null) => (String::new(), ExitCode::SUCCESS),
        Ok(value) => (value.to_string(), ExitCode::SUCCESS),
        Err(failure) => (
            failure.print(request.version()).to_string(),
            ExitCode::FAILURE,
        ),
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => exit,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read_request() -> Result<Request, Failure> {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let command = variable("CNI_COMMAND");
    if command.is_empty() {
        let message =
            "this is a CNI plugin, to be run by a container runtime (CNI_COMMAND is not set)";
        return Err(Failure::new(code::INVALID_ENVIRONMENT, message));
    }
    let mut input = Vec::new();
    let read = io::stdin()
        .lock()
        .take(LONGEST_CONFIG)
        .read_to_end(&mut input);
    read.map_err(|error| {
        Failure::new(code::IO, format!("cannot read the configuration: {error}"))
    })?;
    let config = if input.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(&input).map_err(|error| {
            Failure::new(
                code::DECODING,
                format!("the configuration is no JSON: {error}"),
            )
        })?
    };
    Ok(Request {
        command,
        container_id: variable("CNI_CONTAINERID"),
        netns: variable("CNI_NETNS"),
        ifname: variable("CNI_IFNAME"),
        args: variable("CNI_ARGS"),
        config,
    })
}

fn answer(name: &str, request: &Request) -> Result<Value, Failure> {
    match (request.command.as_str(), name) {
        ("VERSION", _) => Ok(versions(request.version())),
        (_, LOOPBACK) => loopback(request),
        _ => ask_agent(request),
    }
}

fn ask_agent(request: &Request) -> Result<Value, Failure> {
    let Some(path) = request.config.get("socket").and_then(Value::as_str) else {
        let message = "the network configuration names no \"socket\" of the agent";
        return Err(Failure::new(code::INVALID_CONFIG, message));
    };
    let exchange = || -> io::Result<Reply> {
        let stream = socket::with_short_path(Path::new(path), |path| UnixStream::connect(path))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        (&stream).write_all(&line)?;
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply)?;
        Ok(serde_json::from_str(&reply)?)
    };
    match exchange() {
        Ok(Reply::Result(value)) => Ok(value),
        Ok(Reply::Error(failure)) => Err(failure),
        Err(error) => {
            let unavailable = request.command == "STATUS";
            let code = if unavailable {
                code::NOT_AVAILABLE
            } else {
                code::TRY_AGAIN
            };
            let message = format!("the sampan agent does not answer at {path}: {error}");
            Err(Failure::new(code, message))
        }
    }
}

/// This process does nothing else, so it may move to the namespace itself.
fn loopback(request: &Request) -> Result<Value, Failure> {
    if request.command != "ADD" && request.command != "CHECK" {
        return Ok(Value::Null);
    }
    let fail = |error: sampan_netlink::Error| Failure::new(code::FAILED, error.to_string());
    let namespace = sampan_netlink::Namespace::open(PathBuf::from(&request.netns)).map_err(fail)?;
    let mut routes = sampan_netlink::route::Connection::open_in(&namespace).map_err(fail)?;
    let link = routes.link("lo").map_err(fail)?;
    if request.command == "CHECK" {
        let down = || Failure::new(code::FAILED, "the loopback link is down");
        return if link.up {
            Ok(Value::Null)
        } else {
            Err(down())
        };
    }
    routes.set_up(link.index).map_err(fail)?;
    Ok(loopback_result(request))
}

fn loopback_result(request: &Request) -> Value {
    let mut ip = json!({"interface": 0, "address": "127.0.0.1/8"});
    if request.version().starts_with("0.") {
        ip["version"] = json!("4");
    }
    json!({
        "cniVersion": request.version(),
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": request.netns}],
        "ips": [ip],
        "dns": {}
    })
}
