//! The control plane: store, API server, and what is written into it at every start.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use sampan_api::user::well_known;
use sampan_api::{Registry, UserInfo};
use sampan_apiserver::auth::{self, Authenticator, FrontProxy, ServiceAccountTokens, StaticTokens};
use sampan_apiserver::registry::server::{ApiServer, Core};
use sampan_client::Client;
use sampan_config::Settings;
use sampan_net::{CertificateChecker, ServerIdentity};
use sampan_pki::server::{ServerNames, ServerPki};
use sampan_store::sqlite::{SqliteOptions, SqliteStore};
use sampan_util::Shutdown;

const SERVICE_ACCOUNT_NAMESPACE: &str = "kube-system";
