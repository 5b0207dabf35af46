use serde_json::{Value, json};

use super::*;

fn node(name: &str, zone: &str, cpu: u32, tainted: bool) -> Arc<Node> {
    let taints = if tainted { json!([{"key": "lost", "effect": "NoSchedule"}]) } else { json!([]) };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": cpu.to_string(), "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap(),
    )
}

fn pod(uid: &str, owner: &str, spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": uid, "namespace": "d", "uid": uid,
        "ownerReferences": [{"kind": "Job", "name": owner, "uid": owner, "controller": true}]}});
    pod["spec"] = spec;
    serde_json::from_value(pod).unwrap()
}

fn asking(cpu: u32) -> Value {
    json!({"containers": [{"resources": {"requests": {"cpu": cpu.to_string()}}}]})
}

/// The result as text.
fn found(board: &mut Board, pod: &Pod) -> String {
    match board.find(pod, None) {
        Found::Best(names) => names.join(" "),
        Found::None(why) => why,
    }
}

#[test]
fn an_answer_is_for_the_nodes_as_they_are_now() {
    let mut board = Board::default();
    let pods: Vec<Pod> = (0..3).map(|number| pod(&format!("p{number}"), "job", asking(3))).collect();
    assert_eq!(found(&mut board, &pods[0]), "no nodes available to schedule pods");
    board.see_node("b", Some(&node("b", "1", 4, false)));
    board.see_node("a", Some(&node("a", "2", 4, false)));
    assert_eq!(found(&mut board, &pods[0]), "a b", "by name, whichever was seen first");
    board.take(&pods[0], "a");
    assert_eq!(found(&mut board, &pods[1]), "b");
    board.take(&pods[1], "b");
    assert_eq!(found(&mut board, &pods[2]), "0/2 nodes are available: 2 Insufficient cpu.");
    board.see_node("b", Some(&node("b", "1", 4, true)));
    assert_eq!(
        found(&mut board, &pods[2]),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    );
    assert!(board.release("p0"));
    assert!(!board.release("p0"));
    assert_eq!(found(&mut board, &pods[2]), "a");
    board.see_node("a", None);
    assert_eq!(found(&mut board, &pods[2]), "0/1 nodes are available: 1 node(s) had untolerated taint(s).");
}

#[test]
fn a_pod_has_obstacles_of_its_own() {
    let mut board = Board::default();
    for name in ["a", "b"] {
        board.see_node(name, Some(&node(name, "1", 4, false)));
    }
    let one = pod("p", "job", asking(1));
    let not_a = |node: &Node| (node.metadata.name == "a").then_some(Obstacle::AntiAffinity);
    let nowhere = |_: &Node| Some(Obstacle::VolumeNodeAffinity);
    assert!(matches!(board.find(&one, Some(&not_a)), Found::Best(names) if names == ["b"]));
    assert!(
        matches!(board.find(&one, Some(&nowhere)), Found::None(why) if why.contains("2 node(s) didn't match Persistent"))
    );
    assert_eq!(found(&mut board, &one), "a b", "they are not remembered for others of its kind");
}

/// All that happened to a board, to be replayed on another one.
#[derive(Clone, Default)]
struct Facts {
    nodes: BTreeMap<String, Arc<Node>>,
    placed: BTreeMap<String, (Pod, String)>,
}

/// Whatever happened before, a board gives the same answers as one that has only seen the present state.
#[test]
fn what_is_remembered_is_what_would_be_worked_out_anew() {
    for seed in 0..40 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut board = Board::default();
        let mut facts = Facts::default();
        for step in 0..120 {
            let name = format!("n{}", chance.u32(..6));
            match chance.u32(..5) {
                0 => {
                    let zone = chance.u32(..2).to_string();
                    let node = node(&name, &zone, chance.u32(2..6), chance.u32(..4) == 0);
                    board.see_node(&name, Some(&node));
                    facts.nodes.insert(name, node);
                }
                1 if chance.u32(..3) == 0 => {
                    board.see_node(&name, None);
                    facts.nodes.remove(&name);
                }
                2 => {
                    if let Some(uid) = facts.placed.keys().next().cloned() {
                        board.release(&uid);
                        facts.placed.remove(&uid);
                    }
                }
                _ => {
                    let owner = ["x", "y"][chance.usize(..2)];
                    let new = pod(&format!("p{step}"), owner, asking(chance.u32(1..4)));
                    let mut fresh = Board::default();
                    for (name, node) in &facts.nodes {
                        fresh.see_node(name, Some(node));
                    }
                    for (pod, node) in facts.placed.values() {
                        fresh.take(pod, node);
                    }
                    let answer = found(&mut board, &new);
                    assert_eq!(answer, found(&mut fresh, &new), "seed {seed}, step {step}");
                    let first = answer.split(' ').next().unwrap().to_owned();
                    if facts.nodes.contains_key(&first) {
                        board.take(&new, &first);
                        facts.placed.insert(new.metadata.uid.clone(), (new, first));
                    }
                }
            }
        }
    }
}
