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
