//! The incidents.

use salvor_simulate::Machine;

use super::script::{Cause, Condition, Event, GPU, Incident, LOST, NOT_READY, pool};

const ZONES: [&str; 3] = ["a", "b", "c"];
const MINUTE: u64 = 60;
const SINGLES: [&str; 6] = ["p1", "p2", "p3", "p4", "p5", "p6"];

/// In the order of the page.
pub(super) fn all() -> Vec<Incident> {
    let mut all = of_one_machine();
    all.extend(of_many_nodes());
    all.extend(of_zones());
    all.extend(of_the_breaker());
    all.extend(of_launches());
    all
}

fn at(minute: u64, event: Event) -> (u64, Event) {
    (minute * MINUTE, event)
}

fn of_one_machine() -> Vec<Incident> {
    let flapping = (1..24).map(|turn| at(turn * 5, Event::Rewritten(3, GPU)));
    let restarts = (1..15).flat_map(|turn| {
        let begin = turn * 8 * MINUTE;
        [(begin, Event::AgentRestarts(3, GPU)), (begin + 20, Event::Rewritten(3, GPU))]
    });
    let broken = || std::iter::once(at(0, Event::Breaks(3, GPU)));
    vec![
        Incident {
            name: "one sick accelerator",
            story: "One of 20 machines breaks.",
            nodes: pool("gpu", 20, &ZONES),
            events: broken().collect(),
            minutes: 60,
        },
        Incident {
            name: "flapping agent",
            story: "One of 20 machines breaks. Its agent writes a new lastTransitionTime every 5 minutes.",
            nodes: pool("gpu", 20, &ZONES),
            events: broken().chain(flapping).collect(),
            minutes: 120,
        },
        Incident {
            name: "agent restarts",
            story: "One of 20 machines breaks. Its agent restarts every 8 minutes and then says for 20 seconds that all is well.",
            nodes: pool("gpu", 20, &ZONES),
            events: broken().chain(restarts).collect(),
            minutes: 120,
        },
        Incident {
            name: "never initialized",
            story: "A new node registers and is Ready, but is never initialized, so no pod may run on it.",
            nodes: pool("gpu", 10, &ZONES),
            events: vec![at(0, Event::NeverInitialized(machine("gpu", "a")))],
            minutes: 90,
        },
    ]
}

fn machine(pool: &str, zone: &str) -> Machine {
    Machine { pool: pool.to_owned(), zone: zone.to_owned() }
}

/// A bad version of an agent is rolled out to one node per minute.
fn rollout(nodes: usize, condition: &'static Condition, over: u64) -> Vec<(u64, Event)> {
    let mut events = vec![at(0, Event::NewOnesAil("gpu", condition))];
    events.extend((0..nodes).zip(0..).map(|(node, minute)| at(minute, Event::Ails(vec![node], condition))));
    events.push(at(over, Event::Passes(condition)));
    events
}

fn of_many_nodes() -> Vec<Incident> {
    vec![
        Incident {
            name: "bad rollout, all at once",
            story: "A bad agent calls all 20 nodes sick for 42 minutes. The machine of one of them really is broken.",
            nodes: pool("gpu", 20, &ZONES),
            events: vec![
                at(0, Event::Ails((0..20).collect(), GPU)),
                at(0, Event::NewOnesAil("gpu", GPU)),
                at(1, Event::Breaks(5, GPU)),
                at(42, Event::Passes(GPU)),
            ],
            minutes: 90,
        },
        Incident {
            name: "bad rollout, node by node",
            story: "A bad agent comes to one more of 21 nodes every minute, in three zones. After 45 minutes it is rolled back.",
            nodes: pool("gpu", 21, &ZONES),
            events: rollout(21, GPU, 45),
            minutes: 90,
        },
        Incident {
            name: "bad rollout, node by node, one zone",
            story: "The same with all 21 nodes in one zone.",
            nodes: pool("gpu", 21, &["a"]),
            events: rollout(21, GPU, 45),
            minutes: 90,
        },
        Incident {
            name: "bad rollout in a big pool",
            story: "A bad agent comes to one more of 60 nodes every 2 minutes, and to new ones. After 60 minutes it is rolled back.",
            nodes: pool("gpu", 60, &ZONES),
            events: std::iter::once(at(0, Event::NewOnesAil("gpu", GPU)))
                .chain((0..30).zip(0..).map(|(node, turn)| at(turn * 2, Event::Ails(vec![node], GPU))))
                .chain([at(60, Event::Passes(GPU))])
                .collect(),
            minutes: 90,
        },
        Incident {
            name: "bad rollout on a fifth",
            story: "A bad agent comes to 4 of 20 nodes as a trial, and calls them sick. After 25 minutes it is rolled back.",
            nodes: pool("gpu", 20, &ZONES),
            events: vec![at(0, Event::Ails(vec![0, 5, 10, 15], GPU)), at(25, Event::Passes(GPU))],
            minutes: 60,
        },
        Incident {
            name: "bad rollout, pools of one node",
            story: "Six pools have one node each. A bad agent calls all of them sick for 35 minutes, new ones too.",
            nodes: SINGLES.into_iter().flat_map(|name| pool(name, 1, &["a"])).collect(),
            events: SINGLES
                .into_iter()
                .map(|pool| at(0, Event::NewOnesAil(pool, GPU)))
                .chain([at(0, Event::Ails((0..6).collect(), GPU)), at(35, Event::Passes(GPU))])
                .collect(),
            minutes: 90,
        },
        Incident {
            name: "bad image in a small pool",
            story: "All 4 nodes of a pool are sick because of its image, new ones too, for 60 minutes. 20 nodes of another pool are well.",
            nodes: pool("main", 20, &ZONES).into_iter().chain(pool("edge", 4, &ZONES)).collect(),
            events: vec![
                at(0, Event::NewOnesAil("edge", GPU)),
                at(0, Event::Ails((20..24).collect(), GPU)),
                at(60, Event::Passes(GPU)),
            ],
            minutes: 90,
        },
    ]
}

fn of_zones() -> Vec<Incident> {
    // Four of twenty, the most that Karpenter's circuit breaker allows.
    let small = || {
        let zones = ["a", "a", "b", "b", "c"];
        pool("gpu", 20, &zones)
    };
    vec![
        Incident {
            name: "zone outage",
            story: "The zone of 4 of 20 nodes is cut off for 50 minutes. Its machines are well.",
            nodes: small(),
            events: vec![at(0, Event::ZoneLost("c", Cause::Elsewhere)), at(50, Event::Passes(LOST))],
            minutes: 90,
        },
        Incident {
            name: "zone outage and a sick accelerator",
            story: "The zone of 7 of 21 nodes is cut off for 52 minutes. In another zone a machine breaks at minute 5.",
            nodes: pool("gpu", 21, &ZONES),
            events: vec![
                at(0, Event::ZoneLost("c", Cause::Elsewhere)),
                at(5, Event::Breaks(0, GPU)),
                at(52, Event::Passes(LOST)),
            ],
            minutes: 90,
        },
        Incident {
            name: "zone comes back node by node",
            story: "The zone of 7 of 21 nodes is cut off for 50 minutes. Then one of its nodes comes back every 2 minutes.",
            nodes: pool("gpu", 21, &ZONES),
            events: std::iter::once(at(0, Event::ZoneLost("c", Cause::Elsewhere)))
                .chain(
                    (0..7).zip(0..).map(|(node, turn)| at(50 + turn * 2, Event::Heals(node * 3 + 2, LOST))),
                )
                .chain([at(64, Event::Passes(LOST))])
                .collect(),
            minutes: 90,
        },
        Incident {
            name: "zone lost for good",
            story: "The zone of 4 of 20 nodes is lost and does not come back.",
            nodes: small(),
            events: vec![at(0, Event::ZoneLost("c", Cause::Machine))],
            minutes: 120,
        },
    ]
}

fn of_the_breaker() -> Vec<Incident> {
    vec![
        Incident {
            name: "slow boot wave",
            story: "15 nodes are added to 10 and boot for 25 minutes. One of the 10 machines breaks at minute 0.",
            nodes: pool("gpu", 10, &ZONES),
            events: vec![at(0, Event::ScaleUp(machine("gpu", "a"), 15, 25)), at(0, Event::Breaks(3, GPU))],
            minutes: 90,
        },
        Incident {
            name: "two of four sick",
            story: "Two of 4 machines break, the second one 3 minutes after the first one.",
            nodes: pool("gpu", 4, &ZONES),
            events: vec![at(0, Event::Breaks(0, GPU)), at(3, Event::Breaks(1, GPU))],
            minutes: 120,
        },
        Incident {
            name: "two of four sick at the same moment",
            story: "Two of 4 machines break at once.",
            nodes: pool("gpu", 4, &ZONES),
            events: vec![at(0, Event::Breaks(0, GPU)), at(0, Event::Breaks(1, GPU))],
            minutes: 120,
        },
        Incident {
            name: "stuck terminating",
            story: "One of 5 machines breaks, and its machine never ends. Another one breaks at minute 20.",
            nodes: pool("gpu", 5, &ZONES),
            events: vec![
                at(0, Event::Sticks(0)),
                at(0, Event::Breaks(0, GPU)),
                at(20, Event::Breaks(1, GPU)),
            ],
            minutes: 120,
        },
        Incident {
            name: "cordoned nodes",
            story: "A person cordons 3 of 10 nodes and works on them: they are not Ready for 27 minutes. Another machine breaks at minute 0.",
            nodes: pool("gpu", 10, &ZONES),
            events: vec![
                at(0, Event::Cordoned(vec![0, 1, 2])),
                at(0, Event::Ails(vec![0, 1, 2], NOT_READY)),
                at(0, Event::Breaks(9, GPU)),
                at(27, Event::Passes(NOT_READY)),
            ],
            minutes: 90,
        },
    ]
}

fn of_launches() -> Vec<Incident> {
    let broken = [0, 4, 8, 12, 16].into_iter().zip(0..);
    vec![Incident {
        name: "cloud out of capacity",
        story: "The cloud has no machine for 2 hours. Five of 20 machines break in part, one every 15 minutes. A node that is killed meanwhile is a loss.",
        nodes: pool("gpu", 20, &ZONES),
        events: std::iter::once(at(0, Event::Capacity(false)))
            .chain(broken.map(|(node, turn)| at(turn * 15, Event::Breaks(node, GPU))))
            .chain([at(120, Event::Capacity(true))])
            .collect(),
        minutes: 180,
    }]
}
