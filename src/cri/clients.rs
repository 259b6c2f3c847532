//! The services as plain async methods: a deadline per call, replies without gRPC's wrapping, one error type.

use crate::containerd::services as native;
use crate::runtime::v1::image_service_client::ImageServiceClient;
use crate::runtime::v1::runtime_service_client::RuntimeServiceClient;
use crate::runtime::v1::*;
use crate::{Channel, Error};
use std::time::Duration;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;

/// Like upstream's default for `runtimeRequestTimeout`.
const DEADLINE: Duration = Duration::from_secs(120);
/// A list of everything on a large node does not fit gRPC's default of 4 MiB.
const MESSAGE_LIMIT: usize = 16 << 20;

/// The CRI runtime service.
#[derive(Debug, Clone)]
pub struct Runtime {
    client: RuntimeServiceClient<Channel>,
}

/// The CRI image service.
#[derive(Debug, Clone)]
pub struct Images {
    client: ImageServiceClient<Channel>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $reply:ty, $deadline:expr;)*) => {
        $($(#[$doc])* pub async fn $name(&self, request: $request) -> Result<$reply, Error> {
            let mut request = Request::new(request);
            let deadline: Option<Duration> = $deadline;
            if let Some(deadline) = deadline {
                request.set_timeout(deadline);
            }
            match self.client.clone().$name(request).await {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => Err(Error::call(stringify!($name), status)),
            }
        })*
    };
}

impl Runtime {
    pub fn new(channel: Channel) -> Self {
        let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        Self { client }
    }

    /// The generated client, for calls that have no row below.
    pub fn raw(&self) -> RuntimeServiceClient<Channel> {
        self.client.clone()
    }

    calls! {
        version(VersionRequest) -> VersionResponse, Some(DEADLINE);
        status(StatusRequest) -> StatusResponse, Some(DEADLINE);
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse, Some(DEADLINE);
        /// Not known to containerd 1.6: see [`Error::is_unimplemented`].
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse, Some(DEADLINE);
        /// May wait for the network plugin.
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse, Some(2 * DEADLINE);
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse, Some(DEADLINE);
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse, Some(DEADLINE);
        pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse, Some(DEADLINE);
        list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse, Some(DEADLINE);
        create_container(CreateContainerRequest) -> CreateContainerResponse, Some(DEADLINE);
        start_container(StartContainerRequest) -> StartContainerResponse, Some(DEADLINE);
        /// The deadline is the caller's grace period plus time to kill.
        stop_container(StopContainerRequest) -> StopContainerResponse, None;
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse, Some(DEADLINE);
        list_containers(ListContainersRequest) -> ListContainersResponse, Some(DEADLINE);
        container_status(ContainerStatusRequest) -> ContainerStatusResponse, Some(DEADLINE);
        update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse, Some(DEADLINE);
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse, Some(DEADLINE);
        /// Bounded by the request's own timeout.
        exec_sync(ExecSyncRequest) -> ExecSyncResponse, None;
        exec(ExecRequest) -> ExecResponse, Some(DEADLINE);
        attach(AttachRequest) -> AttachResponse, Some(DEADLINE);
        port_forward(PortForwardRequest) -> PortForwardResponse, Some(DEADLINE);
        container_stats(ContainerStatsRequest) -> ContainerStatsResponse, Some(DEADLINE);
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse, Some(DEADLINE);
        pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse, Some(DEADLINE);
        list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse, Some(DEADLINE);
    }

    /// Container life-cycle events as they happen; unimplemented in containerd 1.6.
    pub async fn get_container_events(
        &self,
    ) -> Result<tonic::Streaming<ContainerEventResponse>, Error> {
        self.raw()
            .get_container_events(GetEventsRequest::default())
            .await
            .map(tonic::Response::into_inner)
            .map_err(|status| Error::call("get_container_events", status))
    }
}

impl Images {
    pub fn new(channel: Channel) -> Self {
        let client = ImageServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        Self { client }
    }

    /// The generated client, for calls that have no row below.
    pub fn raw(&self) -> ImageServiceClient<Channel> {
        self.client.clone()
    }

    calls! {
        list_images(ListImagesRequest) -> ListImagesResponse, Some(DEADLINE);
        image_status(ImageStatusRequest) -> ImageStatusResponse, Some(DEADLINE);
        /// A pull takes as long as the network needs; drop the future to give up.
        pull_image(PullImageRequest) -> PullImageResponse, None;
        remove_image(RemoveImageRequest) -> RemoveImageResponse, Some(DEADLINE);
        image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse, Some(DEADLINE);
    }
}

/// Puts containerd's namespace, and a lease where one is held, on every call.
#[derive(Debug, Clone)]
pub struct Scope {
    namespace: MetadataValue<tonic::metadata::Ascii>,
    lease: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl Interceptor for Scope {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, tonic::Status> {
        let headers = request.metadata_mut();
        headers.insert("containerd-namespace", self.namespace.clone());
        if let Some(lease) = &self.lease {
            headers.insert("containerd-lease", lease.clone());
        }
        Ok(request)
    }
}

type Scoped = InterceptedService<Channel, Scope>;

/// containerd's native services in the namespace where CRI keeps its things.
#[derive(Debug, Clone)]
pub struct Containerd {
    channel: Channel,
    scope: Scope,
}

impl Containerd {
    pub fn new(channel: Channel) -> Self {
        let scope = Scope {
            namespace: MetadataValue::from_static("k8s.io"),
            lease: None,
        };
        Self { channel, scope }
    }

    /// The same services, with everything they create kept alive by `lease`.
    pub fn with_lease(&self, lease: &str) -> Self {
        let mut bound = self.clone();
        bound.scope.lease = lease.parse().ok();
        bound
    }

    pub fn content(&self) -> native::content::v1::content_client::ContentClient<Scoped> {
        native::content::v1::content_client::ContentClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn images(&self) -> native::images::v1::images_client::ImagesClient<Scoped> {
        native::images::v1::images_client::ImagesClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn leases(&self) -> native::leases::v1::leases_client::LeasesClient<Scoped> {
        native::leases::v1::leases_client::LeasesClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn snapshots(&self) -> native::snapshots::v1::snapshots_client::SnapshotsClient<Scoped> {
        native::snapshots::v1::snapshots_client::SnapshotsClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn diff(&self) -> native::diff::v1::diff_client::DiffClient<Scoped> {
        native::diff::v1::diff_client::DiffClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn namespaces(
        &self,
    ) -> native::namespaces::v1::namespaces_client::NamespacesClient<Scoped> {
        native::namespaces::v1::namespaces_client::NamespacesClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    /// Events of containers in all namespaces, also from containerd 1.6.
    pub fn events(&self) -> native::events::v1::events_client::EventsClient<Scoped> {
        native::events::v1::events_client::EventsClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }

    pub fn version(&self) -> native::version::v1::version_client::VersionClient<Scoped> {
        native::version::v1::version_client::VersionClient::with_interceptor(
            self.channel.clone(),
            self.scope.clone(),
        )
    }
}
