//! Every write of an eviction, a crash before and after it, and each of those under every fault: the end is the same as
//! without, every event is recorded once, and pods that need not go are not touched.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_api::config::Configuration;
use salvor_apiserver::Effect;
use salvor_simulate::{CrashPoint, Line, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{Stage, configuration};
use crate::troubles::{Ending, Salvor, TROUBLES, Trouble, play_all};

const KEY: &str = "salvor.dev/force-eviction";
const PROGRESS: &str = "eviction.salvor.dev/progress";
const ASKED: &str = "eviction.salvor.dev/asked";
/// The interval at which the test, which plays kubelet and storage, reconciles.
const BEAT: Duration = Duration::from_secs(5);
/// Everything must have ended after this many beats; `QUIET_BEATS` show that it stays so.
const MOST_BEATS: usize = 400;
const QUIET_BEATS: usize = 3;
/// More writes than any of these flows takes, whatever goes wrong.
const MOST_WRITES: u32 = 60;

/// What happens to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// It is dead, is evicted, and comes back much later.
    Emptied,
    /// It comes back when its volumes are released and not yet detached.
    Returns,
    /// It was never down.
    Well,
}

impl Flow {
    /// The number of events about the node and its pod.
    fn events(self) -> usize {
        match self {
            // Started, evicted, finished, ended.
            Self::Emptied => 4,
            // Started, evicted, returned, ended.
            Self::Returns => 4,
            // Declined.
            Self::Well => 1,
        }
    }
}

fn quick_to_take_over() -> Configuration {
    let election = "leaderElection: {leaseDuration: 20s, renewDeadline: 15s, retryPeriod: 5s}";
    configuration(&format!("controllers: [eviction]\n{election}"))
}

/// A node with a pod that must go, its volume, and a pod that stays; and a node without an eviction request.
async fn set_the_scene(flow: Flow) -> Stage {
    let stage = Stage::new(1).await;
    for node in ["node", "other"] {
        stage.node(node).await;
    }
    let set = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "set", "controller": true}]);
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]);
    let db = json!({"metadata": {"ownerReferences": set}, "spec": {"volumes": volumes}});
    stage.pod("db-0", "node", db).await;
    let tolerates = json!({"spec": {"tolerations": [{"key": KEY, "operator": "Exists"}]}});
    stage.pod("logs", "node", tolerates).await;
    stage.pod("elsewhere", "other", json!({})).await;
    let in_use = json!({"status": {"volumesInUse": ["kubernetes.io/csi/disk.example.com^db"]}});
    stage.nodes().patch_status("node", &PatchParams::default(), &Patch::Strategic(in_use)).await.unwrap();
    let volume = json!({
        "metadata": {"name": "db"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "disk",
            "csi": {"driver": "disk.example.com", "volumeHandle": "db"},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(stage.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let attachment = json!({
        "metadata": {"name": "db"},
        "spec": {"attacher": "disk.example.com", "nodeName": "node", "source": {"persistentVolumeName": "db"}},
    });
    let attachment = serde_json::from_value(attachment).unwrap();
    attachments(&stage).create(&PostParams::default(), &attachment).await.unwrap();
    // Its Lease expires.
    sleep(Duration::from_secs(60)).await;
    if flow == Flow::Well {
        stage.comes_back("node").await;
    } else {
        stage.lose("node").await;
    }
    let mut node = stage.nodes().get("node").await.unwrap();
    let request = json!({"key": KEY, "value": "INC-1", "effect": "NoSchedule"});
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    taints.push(serde_json::from_value(request).unwrap());
    stage.nodes().replace("node", &PostParams::default(), &node).await.unwrap();
    stage
}

fn attachments(stage: &Stage) -> Api<VolumeAttachment> {
    Api::all(stage.client.clone())
}

fn progress(node: &Node) -> Value {
    let mark = node.annotations().get(PROGRESS);
    mark.map_or(Value::Null, |mark| serde_json::from_str(mark).unwrap())
}

/// By a taint, or by the record of one.
fn is_asked_for(node: &Node) -> bool {
    node.annotations().contains_key(ASKED)
        || node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == KEY)
}

/// Plays kubelet and storage to the end of a story, and watches what is left.
struct Rest<'a> {
    stage: &'a Stage,
    flow: Flow,
    is_back: bool,
    quiet: usize,
}

impl<'a> Rest<'a> {
    fn of(stage: &'a Stage, flow: Flow) -> Self {
        Self { stage, flow, is_back: flow == Flow::Well, quiet: 0 }
    }

    /// One beat. Returns whether the story has ended, and whether the machine has just come back.
    async fn beat(&mut self) -> (bool, bool) {
        let node = self.stage.nodes().get("node").await.unwrap();
        let let_go = node.status.as_ref().is_some_and(|s| s.volumes_in_use.iter().flatten().next().is_none());
        if self.flow == Flow::Emptied && let_go {
            // It may be gone already.
            let _ = attachments(self.stage).delete("db", &DeleteParams::default()).await;
        }
        if self.is_back {
            self.stage.renews("node").await;
        }
        let comes_back = match self.flow {
            Flow::Emptied => !progress(&node)["finished"].is_null(),
            Flow::Returns => let_go,
            Flow::Well => false,
        };
        let over = if self.is_back { !is_asked_for(&node) } else { comes_back };
        self.quiet = if over { self.quiet + 1 } else { 0 };
        // While the node is dead nothing more happens; in the middle there is no such quiet period.
        let rests = self.quiet > QUIET_BEATS || (over && self.flow == Flow::Returns && !self.is_back);
        if rests && !self.is_back {
            self.stage.comes_back("node").await;
            (self.is_back, self.quiet) = (true, 0);
            return (false, true);
        }
        (rests, false)
    }
}

async fn play(flow: Flow, line: Line, trouble: Trouble) -> (Ending, u32) {
    let stage = set_the_scene(flow).await;
    let mut salvor = Salvor::start(&stage, quick_to_take_over(), line, trouble, Duration::from_secs(1));
    let mut rest = Rest::of(&stage, flow);
    for _ in 0..MOST_BEATS {
        salvor.live(BEAT).await;
        let (over, came_back) = rest.beat().await;
        if over {
            break;
        }
        if came_back {
            salvor.begin_trouble();
        }
    }
    salvor.stop().await
}

/// The leader is partitioned while one of its writes is in flight, another process takes over, and later that write
/// arrives after all.
async fn overtaken(flow: Flow, write: u32, late: Duration) -> (Ending, u32) {
    let stage = set_the_scene(flow).await;
    let line = Line::holding(write);
    let mut salvor = Salvor::start(&stage, quick_to_take_over(), line.clone(), Trouble::None, Duration::ZERO);
    let arrival = tokio::spawn(async move {
        line.held().await;
        line.cut();
        sleep(late).await;
        line.let_go();
    });
    let mut rest = Rest::of(&stage, flow);
    for _ in 0..MOST_BEATS {
        salvor.live(BEAT).await;
        if rest.beat().await.0 && (arrival.is_finished() || salvor.lives() == 1) {
            break;
        }
    }
    arrival.abort();
    salvor.live(BEAT).await;
    salvor.stop().await
}

fn problems(ending: &Ending, undisturbed: &Ending, crashed: bool, trouble: Trouble) -> Vec<String> {
    let struck = matches!(trouble, Trouble::Struck(_));
    let died = crashed || trouble.deposes();
    let may_be_missing = |what: &str| {
        // Our mark goes with the taint, and with it all information about the incident.
        let end = what == "Added events node-eviction-ended" || what == "Added events node-eviction-declined";
        // A pod that is gone is no reminder either; its deletion does not wait for an event that cannot be recorded at
        // once.
        let pod = what == "Added events evicted";
        (end && (died || trouble.hides_answers())) || (pod && died && struck)
    };
    ending.differences(undisturbed, may_be_missing, |what| {
        // On its way to the same end a node may show more or fewer of the phases in between. A process that sees a
        // heartbeat before Ready reports that the node is alive.
        what != "Modified nodes node" && what != "Added events node-eviction-refused"
    })
}

fn all_points_of(flow: Flow, both: &[Trouble]) {
    let (undisturbed, _) = in_virtual_time(play(flow, Line::default(), Trouble::None));
    assert_eq!(undisturbed.events(), flow.events(), "{undisturbed:#?}");
    let played = |crash: Option<CrashPoint>, trouble: Trouble| {
        let line = crash.map(Line::dying).unwrap_or_default();
        let (ending, lives) = in_virtual_time(play(flow, line, trouble));
        (problems(&ending, &undisturbed, crash.is_some(), trouble), lives)
    };
    play_all(flow, MOST_WRITES, both, played);
    let alone: Vec<Trouble> = TROUBLES.into_iter().filter(|trouble| !both.contains(trouble)).collect();
    play_all(flow, 0, &alone, played);
}

#[test]
fn a_node_that_is_emptied_and_comes_back() {
    all_points_of(Flow::Emptied, &TROUBLES);
}

#[test]
fn a_node_that_comes_back_in_the_middle() {
    all_points_of(Flow::Returns, &[Trouble::None, Trouble::Struck(Effect::AnswerLost)]);
}

#[test]
fn a_node_that_was_never_down() {
    all_points_of(Flow::Well, &TROUBLES);
}

#[test]
fn a_leader_whose_last_write_arrives_when_another_one_leads() {
    let flow = Flow::Emptied;
    let (undisturbed, _) = in_virtual_time(play(flow, Line::default(), Trouble::None));
    let mut wrong = Vec::new();
    // Before the other process leads, when it does, and when everything is over.
    for late in [1, 21, 120].map(Duration::from_secs) {
        for write in 1..MOST_WRITES {
            let (ending, lives) = in_virtual_time(overtaken(flow, write, late));
            let found = problems(&ending, &undisturbed, true, Trouble::None);
            wrong.extend(found.into_iter().map(|problem| format!("write {write}, {late:?} late: {problem}")));
            if lives == 1 {
                assert!(write > 10, "it takes more than {write} writes");
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
