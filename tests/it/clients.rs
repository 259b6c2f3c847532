//! Programs of other people: an operator on the `kube` crate, and Helm.

mod helm;
mod operator;
mod streams;

use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use crate::support::process::Sampan;

/// The `kube` crate's client, as the administrator, by the kubeconfig that kubectl uses.
pub(crate) async fn client_of(sampan: &Sampan) -> kube::Client {
    // More than one dependency brings rustls: the provider has to be named. Another test may have done it.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(sampan.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    kube::Client::try_from(config).unwrap()
}
