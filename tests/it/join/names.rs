//! Whose a node's name is.

use super::*;

/// An agent of its own data that asks for this name, on the machine of `b`.
fn another(cluster: &Cluster, name: &str, folder: &str) -> Sampan {
    let token = cluster.server.data_dir.join("server/node-token");
    let options = [
        format!("--node-name={name}"),
        format!("--token-file={}", token.display()),
        format!("--server=https://{}:6443", cluster.nodes[0].address),
    ];
    let folder = cluster.scratch.path().join(folder);
    Sampan::start("agent", &folder, Some(&cluster.nodes[1]), &options)
}

fn log(sampan: &Sampan) -> String {
    std::fs::read_to_string(&sampan.log).unwrap()
}

#[test]
fn a_node_name_belongs_to_the_machine_that_joined_first() {
    let mut cluster = Cluster::start("names", &[], &[]);
    cluster.wait_ready("a");
    let secret = |node: &str| {
        let name = format!("{node}.node-password.sampan");
        let path = "jsonpath={.data.public-key-sha256} {.metadata.ownerReferences[0].kind}";
        attempt(&mut cluster.server.kubectl_args(&[
            "-n",
            "kube-system",
            "get",
            "secret",
            &name,
            "-o",
            path,
        ]))
    };
    for node in ["a", "b"] {
        eventually(
            "the name's Secret is the Node's",
            MINUTE,
            || match secret(node)? {
                text if text.ends_with(" Node") => Ok(()),
                text => Err(text),
            },
        );
    }
    let before = secret("b").unwrap();
    let mut refused = Vec::new();
    for name in ["a", "b"] {
        let started = std::time::Instant::now();
        let mut impostor = another(&cluster, name, &format!("imp-{name}"));
        assert!(!impostor.wait(), "it ends, and not as if all were well");
        refused.push(started.elapsed().as_secs_f32());
        let text = log(&impostor);
        let expected = format!(
            "sampan: certificate client-kubelet: the cluster refused it: the node name {name} belongs to another"
        );
        assert!(
            text.contains(&expected) && text.contains(&format!("kubectl delete node {name}")),
            "{text}"
        );
        assert!(
            !impostor
                .data_dir
                .join("agent/tls/client-kubelet.crt")
                .exists()
        );
    }
    assert_eq!(secret("b").unwrap(), before);
    // The same machine goes on, also when its certificate is gone.
    cluster.agent.terminate();
    std::fs::remove_file(cluster.agent.data_dir.join("agent/tls/client-kubelet.crt")).unwrap();
    cluster.agent = start_agent(cluster.scratch.path(), &cluster.nodes, &[]);
    cluster.pod("after", "b");
    // Data of a time before names had Secrets: the first one to come has the name.
    cluster.agent.terminate();
    cluster.kubectl("-n kube-system delete secret b.node-password.sampan");
    std::fs::remove_file(cluster.agent.data_dir.join("agent/tls/client-kubelet.crt")).unwrap();
    cluster.agent = start_agent(cluster.scratch.path(), &cluster.nodes, &[]);
    cluster.pod("again", "b");
    // The Node is deleted: the name is free, and the next machine has it.
    cluster.kubectl("delete pod after again --wait=true");
    cluster.agent.terminate();
    cluster.kubectl("delete node b");
    eventually("the name is free", MINUTE, || match secret("b") {
        Err(text) if text.contains("NotFound") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let next = another(&cluster, "b", "next");
    cluster.wait_ready("b");
    let logs = [log(&cluster.server), log(&cluster.agent), log(&next)];
    let wrong = "another program has changed the pod network";
    assert!(!logs.iter().any(|text| text.contains(wrong)), "{logs:?}");
    println!(
        "node names: 2 newcomers with a name that is taken (a server's and an agent's) refused after {refused:.1?} s; \
         the owner came back without its certificate 2 times; free after the Node was deleted, and given to the next machine"
    );
}

/// What a server said that did not start.
fn refusal(folder: &Path, namespace: &Namespace, options: &[&str]) -> String {
    let mut all = vec![
        "--disable-agent".to_owned(),
        format!("--write-kubeconfig={}", folder.join("kubeconfig").display()),
    ];
    all.extend(options.iter().map(|&option| option.to_owned()));
    let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let before = log().len();
    let mut server = Sampan::start("server", folder, Some(namespace), &all);
    assert!(!server.wait(), "{options:?} should be refused");
    log().split_off(before)
}

#[test]
fn data_keeps_the_ranges_that_it_was_made_with() {
    const ROWS: &[(&str, &str)] = &[
        (
            "--cluster-cidr=10.44.0.0/16",
            "the data was made with --cluster-cidr=10.42.0.0/16, and now it is 10.44.0.0/16",
        ),
        (
            "--service-cidr=10.44.0.0/16",
            "the data was made with --service-cidr=10.43.0.0/16, and now it is 10.44.0.0/16",
        ),
        (
            "--cluster-domain=home",
            "the data was made with --cluster-domain=cluster.local, and now it is home",
        ),
    ];
    let scratch = Scratch::new("made");
    let nodes = netns::pair();
    let folder = scratch.path().join("a");
    let mut server = start_server(scratch.path(), &nodes[0], &["--disable-agent"]);
    server.terminate();
    // By the file beside the store, and for data of a time before it by the store itself.
    for has_file in [true, false] {
        let file = server.data_dir.join("server/cluster.json");
        if !has_file {
            std::fs::remove_file(&file).unwrap();
        }
        for (option, expected) in ROWS {
            let told = refusal(&folder, &nodes[0], &[option]);
            assert!(told.contains(&format!("sampan: {expected}")), "{told}");
        }
        assert_eq!(
            file.exists(),
            has_file,
            "what was refused has written nothing"
        );
    }
    let mut again = start_server(scratch.path(), &nodes[0], &["--disable-agent"]);
    let service = run(&mut again.kubectl("get service kubernetes -o jsonpath={.spec.clusterIP}"));
    assert_eq!(service, "10.43.0.1");
    again.terminate();
    println!(
        "ranges: {} changes refused on existing data, each by its file and by its store; the cluster is as it was",
        ROWS.len()
    );
}
