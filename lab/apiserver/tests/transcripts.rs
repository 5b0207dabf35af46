//! Transcripts: the same requests are sent to the embedded API and to the real kube-apiserver, and must get the same
//! answers. `tests/transcripts/*.yaml` are the requests; [`support::differences`] lists the differences that are
//! accepted.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::Path;

use salvor_apiserver::{Cluster, Settings};
use salvor_controllers::{ControlLoops, Loop, LoopOptions};
use salvor_testkit::{ControlPlane, Part};
use support::differences;
use support::generator::{self, Court};
use support::player::{Player, Side};
use support::transcript::{File, Transcript};
use support::webhook::Webhook;

/// The Kubernetes minor that the embedded server imitates.
const EMBEDDED_MINOR: &str = "1.37";

/// The number of random sequences of an ordinary run.
const GENERATED_SEQUENCES: u64 = 200;

/// More differences than these are hard to read.
const REPORTED: usize = 10;

#[tokio::test]
async fn both_servers_answer_alike() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    // Without controllers, nothing changes unexpectedly during a transcript.
    let real = ControlPlane::builder().start().await.unwrap();
    compare("tests/transcripts", &real, &[]).await;
}

#[tokio::test]
async fn both_clean_up_alike() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().with(Part::ControllerManager).start().await.unwrap();
    compare("tests/transcripts/with-controllers", &real, &[Loop::GarbageCollector, Loop::Namespace]).await;
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// `GENERATED=count` plays that many sequences, `GENERATED_SEED=number` begins with another one.
#[tokio::test]
async fn random_requests_are_answered_alike() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().start().await.unwrap();
    let client = real.admin().client("generated");
    let court = Court::new(&client);
    let first = number("GENERATED_SEED", 1);
    let mut reports = Vec::new();
    for seed in first..first + number("GENERATED", GENERATED_SEQUENCES) {
        let (steps, different) = court.judge(generator::sequence(seed)).await;
        if different.is_none() {
            continue;
        }
        // A real difference persists; one caused by a busy server does not.
        let (steps, differences) = court.shrink(steps).await;
        if differences.is_empty() {
            continue;
        }
        let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
        reports.push(format!("seed {seed}:\n{}\n{}\n", generator::show(&steps), differences.join("\n")));
        if reports.len() >= REPORTED {
            break;
        }
    }
    assert!(reports.is_empty(), "the embedded API differs from the real one:\n{}", reports.join("\n"));
}

/// Plays the transcripts of a folder on both sides; ours runs these loops. `TRANSCRIPT=text` selects those whose title
/// contains that text.
async fn compare(folder: &str, real: &ControlPlane, loops: &[Loop]) {
    let only = std::env::var("TRANSCRIPT").ok().filter(|only| !only.is_empty());
    let files = File::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let chosen: Vec<(&File, &Transcript)> = files
        .iter()
        .flat_map(|file| file.transcripts.iter().map(move |transcript| (file, transcript)))
        .filter(|(file, transcript)| {
            only.as_ref().is_none_or(|only| transcript.title_in(file).contains(only))
        })
        .collect();
    let client = real.admin().client("transcripts");
    let webhook = Webhook::start().await;
    let mut report = String::new();
    let mut used = Vec::new();
    for (index, (file, transcript)) in chosen.iter().enumerate() {
        let title = transcript.title_in(file);
        let play = async |namespace: String| {
            play_on_both(&title, transcript, &client, &namespace, loops, &webhook).await
        };
        let (mut differs, mut accepted) = play(format!("t{index}")).await;
        if !differs.is_empty() {
            // A real difference persists; one caused by a busy server does not.
            eprintln!("played again: {differs}");
            (differs, accepted) = play(format!("t{index}-again")).await;
        }
        report.push_str(&differs);
        used.extend(accepted);
    }
    assert!(report.is_empty(), "the embedded API differs from the real one:\n{report}");
    if only.is_none() {
        let titles: Vec<String> = chosen.iter().map(|(file, transcript)| transcript.title_in(file)).collect();
        let unused = differences::unused(&titles, &used);
        assert!(unused.is_empty(), "these accepted differences do not exist any more: {unused:?}");
    }
}

/// The differences in readable form, and the accepted differences that were seen.
async fn play_on_both(
    title: &str,
    transcript: &Transcript,
    client: &kube::Client,
    namespace: &str,
    loops: &[Loop],
    webhook: &Webhook,
) -> (String, Vec<usize>) {
    let (mut report, mut used) = (String::new(), Vec::new());
    let settings = Settings { start: support::wall_clock(), ..Settings::default() };
    let embedded = Cluster::new(settings);
    let (client_of_ours, clock) = (embedded.client(), embedded.clone());
    let options = LoopOptions { loops: loops.iter().copied().collect(), ..LoopOptions::default() };
    let running = ControlLoops::start(&client_of_ours, move || clock.now(), &options);
    let words = [("hook", webhook.url()), ("ca", webhook.bundle())];
    let ours = Player::new(client_of_ours, namespace, Side::Embedded).knowing(&words).play(transcript);
    let theirs = Player::new(client.clone(), namespace, Side::Real).knowing(&words).play(transcript);
    // Controllers take their time, on both sides the same.
    let (ours, theirs) = futures::join!(ours, theirs);
    running.stop().await;
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let request = &transcript.steps[step].request;
        // A transcript must not pass because both sides fail.
        let expected = transcript.steps[step].expect;
        if theirs.status != expected {
            let (status, body) = (theirs.status, &theirs.body);
            report.push_str(&format!(
                "{title}, step {} ({request}): {expected} is expected, but the real one says {status}: {body}\n",
                step + 1
            ));
        }
        for difference in support::compare::differences(ours, theirs) {
            match differences::accepted(title, step, &difference.path) {
                Some(entry) => used.push(entry),
                None => {
                    report.push_str(&format!("{title}, step {} ({request}):\n{difference}\n", step + 1));
                }
            }
        }
    }
    (report, used)
}
