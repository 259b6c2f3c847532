//! The standard health service over gRPC.

use crate::handlers::Outcome;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

pub(super) async fn check(host: &str, port: i32, service: String) -> Outcome {
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let endpoint = match Endpoint::from_shared(format!("http://{address}")) {
        Ok(endpoint) => endpoint.user_agent("kube-probe/1.36"),
        Err(error) => return Outcome::Error(error.to_string()),
    };
    let Ok(endpoint) = endpoint else {
        return Outcome::Error("cannot set the user agent".to_owned());
    };
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => {
            return Outcome::Failure(format!(
                "error: failed to connect service at {address:?}: {error}"
            ));
        }
    };
    let mut client = Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return Outcome::Failure(format!("error: {error}"));
    }
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let request = Request::new(HealthCheckRequest { service });
    match client.unary(request, path, codec).await {
        Ok(reply) => match reply.into_inner().status {
            SERVING => Outcome::Success,
            status => Outcome::Failure(format!(
                "service unhealthy (responded with {:?})",
                status_name(status)
            )),
        },
        Err(status) if status.code() == Code::Unimplemented => Outcome::Failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Err(status) => Outcome::Failure(format!(
            "error: health rpc probe failed: rpc error: code = {:?} desc = {}",
            status.code(),
            status.message()
        )),
    }
}

fn status_name(status: i32) -> &'static str {
    match status {
        0 => "UNKNOWN",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "SERVING",
    }
}
