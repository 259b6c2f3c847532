//! Certificate authorities, leaf certificates, token signing and kubeconfig rendering.
