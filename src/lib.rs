//! # Sampan: Kubernetes in one small executable
//!
//! This page is the map. The executable is `src/main.rs`; everything else lives in crates directly below `src/`.
//!
//! ## What happens on `kubectl apply`
//!
//! 1. **API server** (`apiserver`): authenticate → authorize → decode → default → mutating admission → validate →
//!    validating admission → compare-and-set in the `store`. The watch cache is updated before the writer is answered.
//! 2. **Controllers** (`controllers`) see the change through an informer and write what follows from it.
//! 3. **Scheduler** (`scheduler`) filters and scores nodes and writes a Binding.
//! 4. **Kubelet** (`kubelet`) of that node plans the Pod against what the runtime reports and executes the plan by CRI
//!    (`cri`); the runtime calls our CNI plugin, a shim to the agent's pod network (`network`).
//! 5. Probes run, the Pod becomes Ready, its status goes back through the API.
//! 6. The EndpointSlice controller lists the Pod; the **service proxy** (`proxy`) of every node turns that into nftables
//!    rules; **DNS** (`dns`) answers the name.
//!
//! ## Layers
//!
//! A crate may use the crates of lower layers that its row names, and nothing else of ours. `tests/it/layers.rs` holds
//! this table against `cargo metadata`, transitively.
//!
//! | layer | crate | what lives there |
//! |---|---|---|
//! | 0 | `api` | Kubernetes vocabulary, pure: registry table, schemas, Status, selectors, Quantity, patches, defaulting, validation, codecs, table columns |
//! | 0 | `util` | clock, back-off, supervised tasks, shutdown |
//! | 1 | `config` | the option table and resolved settings |
//! | 1 | `pki` | certificate authorities, leaf certificates, tokens, kubeconfig |
//! | 1 | `netlink` | nf_tables, conntrack, links, routes: encoders and one socket |
//! | 1 | `cri` | generated CRI and containerd protocol code, the connection to the runtime |
//! | 1 | `host` | journal of every change made to the host, with its inverse |
//! | 2 | `net` | TLS, HTTP plumbing, upgraded streams, dialers |
//! | 2 | `store` | revisioned key-value log with watch; bytes only |
//! | 3 | `client` | `Transport`, informers, listers, work queues, events |
//! | 3 | `apiserver` | HTTP front, filters, the generic registry, admission, watch cache, discovery, subresources |
//! | 4 | `controllers` `scheduler` `kubelet` `proxy` `network` `dns` | the actors: never each other, never `store` or `apiserver` |
//! | 5 | `cluster` | joining, node identity, certificate life cycle |
//! | 7 | `daemon` `cli` | build server and agent from settings; one file per subcommand |
//!
//! ## Invariants
//!
//! - Components reach state only through `client`. In one process the in-process transport enters the same pipeline
//!   (authorization, admission, validation) below HTTP and JSON decoding, and each actor has its own identity.
//! - Actors write by create, patch, status and delete of their own fields.
//! - The generic path (store, client, verbs, watch cache, discovery) names no kind; a plural is spelled once, in the table.
//! - `api` and every planner are pure: time and seeds are arguments.
//! - Everything that acts is observe → plan → execute; nothing sleeps for luck or polls where an event exists.
//! - All state of a node derives from its `--data-dir`; every change to the host stands in the journal first.
//!
//! ## Where do I add …
//!
//! | what | one file | one list entry |
//! |---|---|---|
//! | a kind | – | its row in `src/api/registry/builtin.rs`, its fields as a paragraph of `src/api/data/types.txt`; tests ask for a sample in `tests/it/data/objects.json` |
//! | what a kind does differently | see the next table | |
//! | a subresource or virtual resource with behaviour of its own | `src/apiserver/plain/<name>.rs` | the lists in `src/apiserver/plain.rs` |
//! | a controller | `src/controllers/<name>.rs` | `CONTROLLERS` in `src/controllers/lib.rs`; its rights, a block of `src/apiserver/auth/bootstrap/policy.txt` |
//! | a flag | – | its row in `src/config/options.rs` (flag, environment, file key and help follow) and its field in `src/config/settings.rs`; a test prints the table for the README |
//! | a subcommand | `src/cli/<name>.rs` | `COMMANDS` in `src/cli/lib.rs` |
//! | a scheduler plugin | `src/scheduler/plugins/<name>.rs` | `PLUGINS` in `src/scheduler/plugins.rs` |
//! | an admission plugin | `src/apiserver/admission/<name>.rs` | the chain in `src/apiserver/admission.rs` |
//! | a default role or binding | – | a block of `src/apiserver/auth/bootstrap/policy.txt` |
//! | an end-to-end test | `tests/it/<name>.rs` | `tests/it/main.rs` |
//! | a measurement | `tests/bench/<name>.rs` | `MEASUREMENTS` in `tests/bench/main.rs` |
//!
//! A kind behaves like every other kind until a row says otherwise. A row is found by group and kind, so
//! an entry is one line in the table of what differs:
//!
//! | what differs | table |
//! |---|---|
//! | names, fields that a client may not set, deletion, subresource doors | `KINDS` and `ALL_DOORS` in `src/api/kinds.rs` |
//! | defaults that depend on other fields | `src/api/defaults/` |
//! | validation | `RULES` in `src/api/validate/rules.rs` |
//! | columns of `kubectl get` | `src/api/table/<area>.rs` |
//! | a second served version | `src/api/convert.rs` |
//! | priority of a new group in discovery | `src/apiserver/discovery/priority.rs` |
//!
//! Decision records stand in `src/docs/`.
