use std::{collections::BTreeSet, time::Duration};

use proptest::{prelude::*, test_runner::RngSeed};

use super::*;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::read(text, &Source::default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, rng_seed: RngSeed::Fixed(6757), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_story_or_is_refused(text in "\\PC{0,80}|([a-zA-Z]{0,9}: ?[\\[\\]{}a-z0-9&*-]{0,9}\n){0,6}") {
        if let Err(error) = parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// A damaged version of the demo's story is either a story within the limits, or refused with the position of the
    /// problem.
    #[test]
    fn a_damaged_story_is_read_or_refused(at in 0usize..6000, cut in 0usize..40, new in "\\PC{0,4}|[\n:{}\\[\\]*&!|>'\"#-]{1,3}|[0-9]{1,12}") {
        let start = DEMO.floor_char_boundary(at);
        let end = DEMO.floor_char_boundary((start + cut).min(DEMO.len()));
        let text = format!("{}{new}{}", &DEMO[..start], &DEMO[end.max(start)..]);
        match parse(&text) {
            Ok(story) => {
                prop_assert!(story.nodes.len() <= 20_000);
                prop_assert!(story.steps.iter().all(|step| step.after <= Duration::from_secs(24 * 3600)));
            }
            Err(error) => prop_assert!(error.to_string().contains("line") || text.trim().is_empty(), "{}", error),
        }
    }
}

#[test]
fn the_story_of_the_demo_is_one() {
    let scenario = parse(DEMO).unwrap();
    assert_eq!(scenario.nodes.len(), 14);
    assert!(scenario.steps.iter().any(|step| step.expect_recovered));
    assert_eq!(scenario.salvor.repair_policies.len(), 1);
}

#[test]
fn everything_but_the_title_has_a_default() {
    let scenario = parse("title: t\nsteps: []\n").unwrap();
    let pods: Vec<_> = scenario.workloads.iter().map(|it| (it.name.as_str(), it.pods)).collect();
    assert_eq!(pods, [("training", 6), ("database", 3), ("website", 6), ("batch", 24), ("simulation", 4)]);
    assert_eq!(scenario.nodes.len(), 12);
    assert_eq!(scenario.patience, Duration::from_secs(600));
    assert_eq!(parse("title: t\n").unwrap(), scenario);
    assert_eq!(parse("apiVersion: salvor.dev/v1alpha1\nkind: Scenario\ntitle: t\n").unwrap(), scenario);
}

#[test]
fn a_zone_stands_for_its_nodes() {
    let text = "title: t\nzones: 2\nnodesPerZone: 2\nsteps:\n- {after: 1m30s, title: x, crash: {zone: b}}\n";
    let step = &parse(text).unwrap().steps[0];
    assert_eq!(step.after, Duration::from_secs(90));
    assert_eq!(step.strike, Some((Deed::Fault(Fault::Crash), vec!["node-b1".into(), "node-b2".into()])));
}

#[test]
fn nodes_with_an_accelerator_are_in_the_last_zone() {
    let text = |deed: &str| {
        format!(
            "title: t\nzones: 2\nnodesPerZone: 1\ngpuNodes: 2\nsteps:\n- {{after: 1s, title: x, {deed}}}\n"
        )
    };
    let strike = |deed: &str| parse(&text(deed)).unwrap().steps[0].strike.clone().unwrap();
    assert_eq!(strike("heal: {zone: a}").1, ["node-a1"]);
    assert_eq!(strike("crash: {zone: b}").1, ["node-b1", "gpu-1", "gpu-2"]);
    assert_eq!(strike("crash: {node: gpu-2}").1, ["gpu-2"]);
    let failed = strike("failAccelerator: {zone: b}");
    assert_eq!(
        failed,
        (Deed::Fault(Fault::Sick(accelerator_condition())), vec!["gpu-1".to_owned(), "gpu-2".to_owned()])
    );
    let refused = parse(&text("failAccelerator: {node: node-b1}")).unwrap_err().to_string();
    assert_eq!(
        refused,
        "line 6: steps[0].failAccelerator.node: no node of these has an accelerator; gpu-1 to gpu-2 have"
    );
}

const POOLS: &str = "title: t
end: 1h
pools:
- {name: cpu, nodes: 5, zones: [a, b], racksPerZone: 2, spot: true}
- {name: gpu, nodes: 2, machines: {shutdown: 30s, boot: 2m}, taints: [{key: x, effect: NoSchedule}]}
";

#[test]
fn the_nodes_of_a_pool_are_dealt_out_to_zones_and_racks() {
    let scenario = parse(POOLS).unwrap();
    let nodes: Vec<_> =
        scenario.nodes.iter().map(|it| (it.name.as_str(), it.zone.as_str(), it.rack.as_deref())).collect();
    assert_eq!(
        nodes,
        [
            ("cpu-a1", "a", Some("a1")),
            ("cpu-a2", "a", Some("a2")),
            ("cpu-a3", "a", Some("a1")),
            ("cpu-b1", "b", Some("b1")),
            ("cpu-b2", "b", Some("b2")),
            ("gpu-1", "a", None),
            ("gpu-2", "a", None),
        ]
    );
}

#[test]
fn failures_at_a_rate_follow_from_the_seed_alone() {
    let text =
        format!("{POOLS}failures:\n- {{kind: crash, mtbf: 2h, lastsMean: 5m, target: {{pool: cpu}}}}\n");
    let scenario = parse(&text).unwrap();
    assert_eq!(scenario.incidents(7), scenario.incidents(7));
    assert_ne!(scenario.incidents(7), scenario.incidents(8));
    // 5 nodes for an hour with one failure every 2 hours: 2.5 per seed.
    let drawn: usize = (0..400).map(|seed| scenario.incidents(seed).len()).sum();
    assert!((800..1100).contains(&drawn), "{drawn}");
    let more = parse(&text.replace("name: gpu, nodes: 2", "name: gpu, nodes: 9")).unwrap();
    assert_eq!(
        scenario.incidents(7),
        more.incidents(7),
        "another pool does not change what happens to this one"
    );
}

#[test]
fn failures_are_correlated_as_written() {
    let failures = |rest: &str| parse(&format!("{POOLS}failures:\n- {rest}\n")).unwrap().incidents(1);
    let rollout = failures("{kind: reboot, at: 1m, oneEvery: 2m, target: {zone: b}}");
    let times: Vec<_> = rollout.iter().map(|it| (it.at.as_secs(), it.nodes.join(" "))).collect();
    assert_eq!(times, [(60, "cpu-b1".to_owned()), (180, "cpu-b2".to_owned())]);
    let rack = failures("{kind: partition, at: 1m, lasts: 3m, target: {rack: a1}}");
    assert_eq!(
        (rack.len(), rack[0].nodes.as_slice()),
        (1, ["cpu-a1".to_owned(), "cpu-a3".to_owned()].as_slice())
    );
    assert_eq!(rack[0].until, Some(Duration::from_secs(240)));
    let zones = failures("{kind: partition, mtbf: 5m, per: zone, lasts: 1m, target: {pool: cpu}}");
    assert!(zones.iter().all(|it| it.nodes.len() == if it.named == "zone a" { 3 } else { 2 }), "{zones:?}");
    let picked = failures("{kind: crash, at: 1m, pick: 2, target: {spot: true}}");
    assert!(
        picked[0].nodes.len() == 2 && picked[0].nodes.iter().all(|it| it.starts_with("cpu")),
        "{picked:?}"
    );
}

#[test]
fn a_chapter_is_a_failure_until_another_heals_it() {
    let text = "title: t\nsteps:\n- {after: 10s, title: Cut, partition: {zone: b}}\n- {after: 1m, title: One, heal: {node: node-b1}}\n\
                - {after: 1m, title: Boot, reboot: {node: node-a1}}\n";
    let scenario = parse(text).unwrap();
    let incidents = scenario.incidents(1);
    let told: Vec<_> = incidents
        .iter()
        .map(|it| (it.at.as_secs(), it.until.map(|it| it.as_secs()), it.nodes.len(), it.named.as_str()))
        .collect();
    assert_eq!(told, [(10, Some(70), 1, "Cut"), (10, None, 3, "Cut"), (130, Some(130), 1, "Boot")]);
    assert_eq!(scenario.ends(&incidents), Duration::from_secs(130 + 600));
}

#[test]
fn a_recorded_list_is_played_as_it_happened() {
    let folder = std::env::temp_dir().join(format!("salvor-scenario-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let play = |rows: &str| {
        std::fs::write(folder.join("list.csv"), rows).unwrap();
        let text = format!("{POOLS}failures: [{{csv: list.csv}}]\n");
        Scenario::read(&text, &Source { folder: folder.clone() })
    };
    let good = "# from the pager\nat,kind,target,lasts\n2026-01-31T08:00:00Z,crash,node=cpu-a1,5m\n2026-01-31T08:10:30Z, partition, zone=b pool=cpu,\n";
    let incidents = play(good).unwrap().incidents(1);
    assert_eq!((incidents[1].at.as_secs(), incidents[1].nodes.len(), incidents[1].until), (630, 2, None));
    for (rows, expected) in [
        ("", "line 1 of "),
        ("when,what\n", "\"when,what\" is not the header: write at,kind,target,lasts"),
        ("at,kind,target,lasts\n5m,crash\n", "2 columns, and there must be 4"),
        ("at,kind,target,lasts\n5m,fire,zone=a,\n", "kind: \"fire\" is not known: write crash, partition"),
        ("at,kind,target,lasts\nsoon,crash,zone=a,\n", "at: \"soon\" is no time"),
        ("at,kind,target,lasts\n5m,crash,zone=q,\n", "target.zone: there is no zone \"q\"; there are a, b"),
        ("at,kind,target,lasts\n5m,crash,a,\n", "target: \"a\" is not known: write node="),
    ] {
        let error = play(rows).unwrap_err().to_string();
        assert!(error.starts_with("line 6: failures[0].csv: ") && error.contains(expected), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn errors_name_the_field_the_value_the_line_and_what_is_right() {
    let step = |rest: &str| format!("title: t\nsteps:\n- after: 1s\n  title: x\n  {rest}\n");
    let pool = |rest: &str| format!("title: t\npools:\n- {{name: p, nodes: 1}}\n{rest}\n");
    let work = |rest: &str| pool(&format!("workloads:\n- {{name: w, kind: Job, pods: 2, {rest}}}"));
    let fail = |rest: &str| pool(&format!("end: 1h\nfailures:\n- {{{rest}}}"));
    let cases = [
        (
            "title: t\nzones: 27\nsteps: []\n".to_owned(),
            "line 2: zones: 27 cannot be used: write a whole number from 1 to 26",
        ),
        ("title: t\nnodesPerZone: 0\nsteps: []\n".to_owned(), "line 2: nodesPerZone: 0 cannot be used"),
        ("title: t\npatience: soon\nsteps: []\n".to_owned(), "line 2: patience: "),
        (
            "title: t\npatience: 25h\nsteps: []\n".to_owned(),
            "line 2: patience: \"25h\" cannot be used: write 0s to 24h",
        ),
        (
            "title: t\ngpuNodes: 101\nsteps: []\n".to_owned(),
            "line 2: gpuNodes: 101 cannot be used: write a whole number from 0 to 100",
        ),
        (
            "title: t\nwork: {tuning: 2}\nsteps: []\n".to_owned(),
            "line 2: work.tuning: 2 pods need an accelerator each, and gpuNodes is 0",
        ),
        (
            step("failAccelerator: {zone: a}"),
            "line 5: steps[0].failAccelerator.zone: no node has an accelerator: write gpuNodes",
        ),
        ("title: t\nwork: {batch: 10001}\nsteps: []\n".to_owned(), "line 2: work: "),
        (step("crash: {zone: z}"), "line 5: steps[0].crash.zone: there is no zone \"z\"; there are a, b, c"),
        (
            step("heal: {node: x}"),
            "line 5: steps[0].heal.node: there is no node \"x\"; there are node-a1 to node-c4",
        ),
        (step("reboot: {}"), "line 5: steps[0].reboot: write either {zone: NAME} or {node: NAME}"),
        (step("expect: joy"), "line 5: steps[0].expect: \"joy\" cannot be expected: write recovered"),
        (step("crash: {zone: a}\n  heal: {zone: a}"), "line 3: steps[0]: more than one of crash"),
        (
            "apiVersion: v2\ntitle: t\n".to_owned(),
            "line 1: apiVersion: \"v2\" is not known: write salvor.dev/v1alpha1",
        ),
        (pool("zones: 3"), "line 4: zones: there are pools as well"),
        (pool("- {name: p, nodes: 2}"), "line 4: pools[1].name: there are two pools \"p\""),
        (pool("- {name: P, nodes: 2}"), "line 4: pools[1].name: \"P\" cannot be a name"),
        (work("takes: 1"), "line 5: workloads[0].takes: "),
        (work("volume: 1Gi"), "line 5: workloads[0].volume: a Job has none: leave it out"),
        (
            work("evictAfter: 10s"),
            "line 5: workloads[0].evictAfter: counts only beside consent: write consent: terminate or delete",
        ),
        (
            work("consent: maybe"),
            "line 5: workloads[0].consent: \"maybe\" is not known: write none, terminate or delete",
        ),
        (work("budget: {}"), "line 5: workloads[0].budget: write either minAvailable or maxUnavailable"),
        (
            work("budget: {minAvailable: 1, maxUnavailable: 1}"),
            "line 5: workloads[0].budget: write either minAvailable or maxUnavailable",
        ),
        (
            work("budget: {minAvailable: 101%}"),
            "line 5: workloads[0].budget.minAvailable: \"101%\" cannot be used: write a number of pods from 0 to",
        ),
        (
            work("budget: {maxUnavailable: -1}"),
            "line 5: workloads[0].budget.maxUnavailable: -1 cannot be used",
        ),
        (work("pool: q"), "line 5: workloads[0].pool: there is no pool \"q\"; there are p"),
        (work("checkpointEvery: 0s"), "line 5: workloads[0].checkpointEvery: 0s cannot be used"),
        (pool("- {name: q, nodes: 1, labels: {bad key!: x}}"), "line 4: pools[1].labels: "),
        (
            pool("- {name: q, nodes: 1, capacity: {cpu: lots}}"),
            "line 4: pools[1].capacity.cpu: \"lots\" is no amount: write",
        ),
        (
            pool("- {name: q, nodes: 1, taints: [{key: 'a b', effect: NoSchedule}]}"),
            "line 4: pools[1].taints[0]: ",
        ),
        (work("requests: {cpu: -1}"), "line 5: workloads[0].requests.cpu: \"-1\" is no amount"),
        (fail("kind: crash"), "line 6: failures[0]: write either at or mtbf"),
        (
            fail("kind: fire, at: 1s"),
            "line 6: failures[0].kind: \"fire\" is not known: write crash, partition",
        ),
        (fail("at: 1s"), "line 6: failures[0].kind: is missing"),
        (fail("kind: crash, at: 1s, delay: 1s"), "line 6: failures[0].delay: belongs to slow: leave it out"),
        (fail("kind: crash, at: 1s, up: 1s"), "line 6: failures[0].up: belongs to flapping: leave it out"),
        (fail("kind: crash, at: 1s, condition: {type: x}"), "line 6: failures[0].condition: belongs to sick"),
        (fail("kind: reboot, at: 1s, lasts: 1s"), "line 6: failures[0].lasts: a reboot is over at once"),
        (fail("kind: flapping, at: 1s, down: 0s"), "line 6: failures[0].down: 0s cannot be used"),
        (fail("csv: x.csv, lasts: 1s"), "line 6: failures[0]: a list in a file has its own times"),
        (
            fail("kind: reboot, mtbf: 1s").replace("nodes: 1}", "nodes: 9}"),
            "line 6: failures[0].mtbf: it would happen about 32400 times in a play: at most 10000",
        ),
        (
            fail("kind: crash, at: 9000h"),
            "line 6: failures[0].at: \"9000h\" cannot be used: write 0s to 8760h",
        ),
        (
            fail("kind: crash, at: 1s, pick: 2"),
            "line 6: failures[0].pick: 2 cannot be used: write a whole number from 1 to 1",
        ),
        (fail("kind: crash, mtbf: 0s"), "line 6: failures[0].mtbf: \"0s\" cannot be used: write 1s or more"),
        (
            fail("kind: crash, at: 1s, target: {rack: r}"),
            "line 6: failures[0].target.rack: there is no rack \"r\"; there are none",
        ),
        (
            pool("failures: [{kind: crash, mtbf: 1h}]"),
            "line 4: failures[0].mtbf: failures at a rate need an end: write end, such as end: 1h",
        ),
        (
            "title: t\nsalvor:\n  config:\n    # why\n    brake:\n      maxUnreachablePercent: 101\n"
                .to_owned(),
            "line 6: salvor.config.brake.maxUnreachablePercent: ",
        ),
        (
            "title: t\nsalvor:\n  config: {brake: {maxUnreachablePercent: 101}}\n".to_owned(),
            "line 3: salvor.config.brake.maxUnreachablePercent: ",
        ),
        (
            "title: t\nsalvor: {configFile: nowhere.yaml}\n".to_owned(),
            "line 2: salvor.configFile: cannot read nowhere.yaml",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(&text).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}\nis      {error}\nand not {expected}");
    }
}

#[test]
fn what_is_not_in_the_format_is_refused_with_its_line() {
    for (text, field) in [
        ("title: t\nstep: []\n", "step"),
        ("title: t\nwork: {cats: 1}\nsteps: []\n", "cats"),
        ("steps: []\n", "title"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains("line"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(parse("title: [\n").is_err());
    assert!(parse("").is_err());
}

/// The parser lists the fields that it knows when it meets an unknown one.
#[test]
fn the_schema_has_the_fields_that_the_parser_knows() {
    let fields = |text: &str| -> BTreeSet<String> {
        let error = parse(text).unwrap_err().to_string();
        let (_, known) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
        let known = known.split(" at line").next().unwrap_or_default().trim_start_matches(" one of");
        let names = known.split([',', '`', ' ', ':']).filter(|word| !word.is_empty() && *word != "or");
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        assert!(!names.is_empty(), "{error}");
        names
    };
    let schema = schema();
    let of = |properties: &Value| properties.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(fields("zz: 1\n"), of(&schema["properties"]));
    assert_eq!(fields("title: t\nwork: {zz: 1}\n"), of(&schema["properties"]["work"]["properties"]));
    for (definition, text) in [
        ("pool", "title: t\npools: [{zz: 1}]\n"),
        ("taint", "title: t\npools: [{taints: [{zz: 1}]}]\n"),
        ("machines", "title: t\npools: [{machines: {zz: 1}}]\n"),
        ("workload", "title: t\nworkloads: [{zz: 1}]\n"),
        ("budget", "title: t\nworkloads: [{budget: {zz: 1}}]\n"),
        ("salvor", "title: t\nsalvor: {zz: 1}\n"),
        ("target", "title: t\nfailures: [{target: {zz: 1}}]\n"),
        ("step", "title: t\nsteps: [{zz: 1}]\n"),
        ("failure", "title: t\nfailures: [{zz: 1}]\n"),
        ("condition", "title: t\nfailures: [{condition: {zz: 1}}]\n"),
    ] {
        assert_eq!(fields(text), of(&schema["$defs"][definition]["properties"]), "{definition}");
    }
}

#[test]
fn the_demo_has_a_chapter_for_the_beginning_and_the_end_of_each_failure() {
    let text = format!(
        "{POOLS}steps: [{{after: 2m, title: Look}}]\nfailures:\n- {{kind: partition, at: 1m, lasts: 3m, target: {{zone: b}}}}\n"
    );
    let chapters = parse(&text).unwrap().chapters(1);
    let told: Vec<_> = chapters.iter().map(|it| (it.after.as_secs(), it.title.as_str())).collect();
    assert_eq!(told, [(60, "partition, zone b"), (60, "Look"), (120, "The end of: partition, zone b")]);
}

#[test]
fn a_failure_can_be_written_in_one_line() {
    let mut scenario = parse(POOLS).unwrap();
    scenario.fail("partition zone=b 15m").unwrap();
    scenario.fail("crash node=cpu-a1 at=1m").unwrap();
    let told: Vec<_> = scenario
        .incidents(1)
        .into_iter()
        .map(|it| (it.at.as_secs(), it.named, it.nodes.len(), it.until.is_some()))
        .collect();
    assert_eq!(told, [(60, "cpu-a1".to_owned(), 1, false), (300, "zone b".to_owned(), 2, true)]);
    for (line, expected) in [
        ("", "write its kind"),
        ("fire zone=b", "\"fire\" is not known: write crash"),
        ("crash", "write either {zone: NAME}"),
        ("crash zone=q", "target.zone: there is no zone \"q\"; there are a, b"),
        ("crash zone=b soon", "soon"),
        ("crash zone=b 1m 2m", "write its kind"),
    ] {
        let error = scenario.fail(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
}
